"""Syntax highlighting of code, line by line, by the language of its block."""

from typing import TYPE_CHECKING

from .wrap import Piece

if TYPE_CHECKING:
    from pygments.lexer import Lexer

CONTEXT = 100  # preceding lines used as context, such as one that opened a string

# Token types of pygments, and the styles in `screen.STYLES`; the longest matching name is used.
STYLES = {
    "Token.Keyword": "keyword",
    "Token.Operator.Word": "keyword",
    "Token.Literal.String": "string",
    "Token.Literal.Number": "number",
    "Token.Comment": "comment",
    "Token.Name.Function": "name",
    "Token.Name.Class": "name",
    "Token.Name.Decorator": "name",
    "Token.Name.Tag": "name",
    "Token.Name.Builtin": "builtin",
    "Token.Generic.Deleted": "deleted",
    "Token.Generic.Inserted": "string",
}


class Highlighter:
    """The lines of one block of code."""

    def __init__(self, lexer: "Lexer") -> None:
        self._lexer = lexer
        self._before: list[str] = []

    @classmethod
    def of(cls, language: str) -> "Highlighter | None":
        """A highlighter for a language; None without a name, or for an unknown one."""
        if not language:
            return None
        from pygments.lexers import get_lexer_by_name
        from pygments.util import ClassNotFound

        try:
            return cls(get_lexer_by_name(language, stripnl=False, ensurenl=False))
        except ClassNotFound:
            return None

    def line(self, text: str) -> list[Piece]:
        """Highlights the next line."""
        self._before = [*self._before[-CONTEXT:], text]
        pieces: list[Piece] = []
        for kind, value in self._lexer.get_tokens("\n".join(self._before)):
            first, *others = value.split("\n")
            pieces = [*pieces, (first, _style(str(kind)))] if not others else [(others[-1], _style(str(kind)))]
        shown = [piece for piece in pieces if piece[0]]
        return shown if "".join(part for part, _ in shown) == text else [(text, "source")]


def _style(kind: str) -> str:
    while kind:
        if kind in STYLES:
            return STYLES[kind]
        kind = kind.rpartition(".")[0]
    return "source"
