"""Decisions between given options, in the format of TypeSafe's System One API, by models such as Clef."""

from functools import partial

from .call import Call, Response, Whole
from .endpoint import Endpoint
from .errors import require
from .fields import DECISIONS, honoured
from .openai import FAMILY, model_name
from .routes import Route, post
from .service import Service

PATH = "/v1/systemone"


def routes(service: Service) -> list[Route]:
    """The routes of this API."""
    return [post(PATH, partial(Endpoint, service, FAMILY)(decide, takes_body=True))]


async def decide(service: Service, call: Call) -> Response:
    """Answers questions about a state. All of them are decided together."""
    fields = honoured(call, DECISIONS)
    require(fields, "state", "questions")
    tokens, answers = await service.decide(call, model_name(fields), fields["state"], fields["questions"])
    usage = {"input_tokens": tokens, "output_tokens": 0}
    return Whole({"model": call.notes["model"], "answers": answers, "usage": usage})
