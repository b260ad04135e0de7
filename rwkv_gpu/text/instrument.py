"""Transforms a parsed template: inserts a budget, and a mark before the text that opens an answer at its end.

The budget consists of filters that templates cannot name, and that the sandbox supplies: `step` counts, `made` weighs a
value, `concat` joins texts.
"""

from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from rwkv_gpu.text.budget import STEP

WANTED = "add_generation_prompt"  # the variable that requests the opening of an answer
NESTING = 16  # Python's own limit for nested loops is 20; compile time grows with it too
STATEMENTS = (nodes.Import, nodes.FromImport, nodes.Include, nodes.Extends, nodes.Block, nodes.EvalContextModifier)


class Generation(Extension):
    """`{% generation %}`, which marks assistant messages for training; here it outputs only its body."""

    tags = {"generation"}  # noqa: RUF012  jinja2 requires a set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Replaces the block by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Instrument(NodeTransformer):
    """Inserts checks of the budget: a count of steps in each loop and macro, and the size of each created value."""

    def __init__(self) -> None:
        self._nesting = 0

    def generic_visit(self, node: nodes.Node, *args: Any, **options: Any) -> nodes.Node:
        """Any other node: refuses it if not allowed, else visits its children."""
        if isinstance(node, STATEMENTS):
            raise TemplateSyntaxError(f"{type(node).__name__.lower()} is not for chat templates", node.lineno)
        super().generic_visit(node, *args, **options)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """Counts a step per iteration, and per item that the loop's condition filters."""
        self.visit_Macro(node)
        if node.test is not None:
            node.test = nodes.And(_step(node), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: "nodes.For | nodes.Macro | nodes.CallBlock") -> nodes.Node:
        """Counts a step per call."""
        if self._nesting == NESTING:
            raise TemplateSyntaxError(f"loops and macros are nested more than {NESTING} deep", node.lineno)
        step = nodes.ExprStmt(_step(node), lineno=node.lineno)
        self._nesting += 1
        self.generic_visit(node)
        self._nesting -= 1
        node.body.insert(0, step)
        return node

    visit_CallBlock = visit_Macro

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """a ~ b"""
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), " concat")

    def visit_List(self, node: "nodes.List | nodes.Dict | nodes.Getitem") -> nodes.Node:
        """[a, b], and other nodes that create a value."""
        self.generic_visit(node)
        return _filter(node, " made")

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """(a, b), which may also be an assignment target."""
        self.generic_visit(node)
        return node if node.ctx == "store" else _filter(node, " made")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """a[b:c] creates a value, a[b] does not."""
        return self.visit_List(node) if isinstance(node.arg, nodes.Slice) else self.generic_visit(node)


def mark_opening(template: nodes.Template, mark: str) -> bool:
    """Inserts a mark before a final `{% if add_generation_prompt %}...{% endif %}` of a template.

    False if the template does not end like this, or uses the variable elsewhere.
    """
    last = template.body[-1] if template.body else None
    if not (isinstance(last, nodes.If) and isinstance(last.test, nodes.Name) and last.test.name == WANTED):
        return False
    uses = [one for one in template.find_all(nodes.Name) if one.name == WANTED]
    if len(uses) > 1 or last.elif_ or last.else_:
        return False
    template.body.insert(-1, nodes.Output([nodes.TemplateData(mark)], lineno=last.lineno))
    return True


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _step(node: nodes.Node) -> nodes.Filter:
    """The cost of one run of the body of `node`, without nested parts, which are counted separately."""
    size = STEP
    for part in node.find_all(nodes.Node):
        size += 8
        if isinstance(part, nodes.TemplateData):
            size += len(part.data)
    return _filter(nodes.Const(size, lineno=node.lineno), " step")
