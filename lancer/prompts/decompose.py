"""Request → sub-questions (LANCER, section 4, "Synthetic Sub-question Generation"); the prompt and its reader.

Two worked examples: without them the embedded SmolLM2 does not decompose at all, larger models do not need them.
"""

from __future__ import annotations

from typing import Final

from lancer.prompts.data import as_data
from lancer.prompts.message import Message
from lancer.prompts.reading_questions import distinct, read_questions

__all__ = ["VERSION", "distinct", "parse", "render"]

VERSION: Final = 2  # of the reader; the prompt's text enters fingerprints by itself

_TASK: Final = (
    "Write the {n} different questions that a report on this request must answer. Each stands alone, names its "
    "subject, asks for one thing and repeats no other. One numbered question per line, nothing else."
)
_EXAMPLES: Final = (
    (
        "Prepare an overview of urban tree planting in hot cities, for a council that must decide on a budget.",
        (
            "How much do street trees lower the temperature of a hot city?",
            "What does planting and watering one urban tree cost over its life?",
            "Which tree species survive drought and heat beside roads?",
            "Who is responsible for the care of street trees in a city?",
            "What damage do tree roots do to pavements and pipes?",
            "How do residents take part in urban tree planting?",
            "How is the survival of planted trees monitored?",
            "Which neighbourhoods have the fewest trees?",
            "How do trees affect air quality in streets?",
            "What laws protect mature trees from felling?",
        ),
    ),
    (
        "Report on how a country replaced its paper ballots with electronic voting machines.",
        (
            "Why were paper ballots replaced by electronic voting machines?",
            "How much did the electronic voting machines cost?",
            "How are electronic voting machines tested for security?",
            "What faults happened on election day with the machines?",
            "How did voters with disabilities use the machines?",
            "How are electronic votes recounted after a dispute?",
            "Which companies supplied the voting machines?",
            "How were poll workers trained to use the machines?",
            "Did the change alter how many people voted?",
            "What did courts decide about electronic voting?",
        ),
    ),
)


def render(
    *, text: str, n: int, title: str | None = None, background: str | None = None, problem_statement: str | None = None
) -> list[Message]:
    """The chat prompt that asks for `n` sub-questions of one request.

    The task stands in every user turn, not in a system turn: SmolLM2 follows it better there.
    """
    task = _TASK.replace("{n}", str(n))
    messages: list[Message] = []
    for request, questions in _EXAMPLES:
        shown = "\n".join(f"{number}. {question}" for number, question in enumerate(questions[:n], start=1))
        messages.append({"role": "user", "content": f"Request: {request}\n\n{task}"})
        messages.append({"role": "assistant", "content": shown})
    parts = [
        f"{label}: {as_data(value)}"
        for label, value in (
            ("Title", title),
            ("Background", background),
            ("Problem statement", problem_statement),
            ("Request", text),
        )
        if value
    ]
    messages.append({"role": "user", "content": "\n".join(parts) + f"\n\n{task}"})
    return messages


def parse(output: str, n: int) -> list[str]:
    """The distinct sub-questions in a model's output, at most `n`, in order; [] when there are none."""
    return read_questions(output, n)
