"""What a user sees when a policy file and what is asked of it do not agree."""


class ContractError(Exception):
    """A policy file, robot or request that breaks the contract; its text is the one line the user is shown."""
