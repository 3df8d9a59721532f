"""The command load."""

import click


@click.command("load")
def load_() -> None:
    """Show when the coming runs are most, and how to spread them."""
