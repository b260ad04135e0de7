"""Colours for code: a line at a time, by the language that its block names."""

from typing import TYPE_CHECKING

from .wrap import Piece

if TYPE_CHECKING:
    from pygments.lexer import Lexer

CONTEXT = 100  # lines before a line that decide what it means, such as one that opened a string

# The names of token types in pygments, and of styles in `screen.STYLES`; the longest name that fits decides.
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
        """For a language by its name; None for no name, or one that is not known."""
        if not language:
            return None
        from pygments.lexers import get_lexer_by_name
        from pygments.util import ClassNotFound

        try:
            return cls(get_lexer_by_name(language, stripnl=False, ensurenl=False))
        except ClassNotFound:
            return None

    def line(self, text: str) -> list[Piece]:
        """The pieces of the next line."""
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
