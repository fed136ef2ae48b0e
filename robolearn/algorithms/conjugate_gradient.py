"""Linear systems known only by their products with vectors."""

from collections.abc import Callable, Sequence

import torch

Product = Callable[[torch.Tensor], torch.Tensor]
"""A symmetric matrix (P, P) by what it makes of a vector (P,)."""


def conjugate_gradient(product: Product, b: torch.Tensor, iterations: int, tolerance: float = 1e-10) -> torch.Tensor:
    """Return x (P,) with ``product(x)`` near b (P,), for a positive definite product (Hestenes and Stiefel 1952).

    Args:
        product: the matrix.
        b: the right-hand side.
        iterations: at most this many products.
        tolerance: squared norm of the residual that ends the iteration early, as a share of that of b.
    """
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    square = start = residual.dot(residual)
    for _ in range(iterations):
        if square <= tolerance * start:
            break
        image = product(direction)
        step = square / direction.dot(image)
        x += step * direction
        residual -= step * image
        square, previous = residual.dot(residual), square
        direction = residual + square / previous * direction
    return x


def hessian_product(value: torch.Tensor, parameters: Sequence[torch.Tensor], damping: float = 0.0) -> Product:
    """Return the Hessian of a value () in its parameters, P numbers in all, plus ``damping`` times the identity."""
    gradient = flat_gradient(value, parameters, create_graph=True)

    def product(vector: torch.Tensor) -> torch.Tensor:
        return flat_gradient(gradient.dot(vector), parameters, retain_graph=True) + damping * vector

    return product


def flat_gradient(
    value: torch.Tensor, parameters: Sequence[torch.Tensor], create_graph: bool = False, retain_graph: bool = False
) -> torch.Tensor:
    """Return the gradient (P,) of a value () in its parameters, one after the other."""
    gradients = torch.autograd.grad(
        value, parameters, create_graph=create_graph, retain_graph=retain_graph or create_graph
    )
    return torch.cat([g.flatten() for g in gradients])
