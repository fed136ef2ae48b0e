"""What the episodes that ended in a stretch of experience were like."""


class EpisodeMeans:
    """Means of what episodes log when they end, weighted by how many ended."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._count = 0.0

    def add(self, log: dict[str, float]) -> None:
        """Take in ``extras["log"]`` of a step."""
        count = log.get("episode/count", 0.0)
        self._count += count
        for name, value in log.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * count

    def result(self) -> dict[str, float]:
        """Return the means; nothing but the count if no episode ended."""
        if not self._count:
            return {"episode/count": 0.0}
        return {name: total / self._count for name, total in self._sums.items()} | {"episode/count": self._count}
