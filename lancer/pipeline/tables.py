"""Tables as every command prints them."""

from __future__ import annotations

from rich.table import Table


def plain_table(*names: str) -> Table:
    """Without lines; the first column to the left, numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(names):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def usd_amount(amount: float) -> str:
    """Cents from a dollar on, below it three digits."""
    return f"{amount:,.2f}" if amount >= 1 or not amount else f"{amount:.3g}"
