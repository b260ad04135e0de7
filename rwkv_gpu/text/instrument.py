"""Changes a parsed template: puts a budget into it, and a mark before what opens an answer at its end.

The budget is in filters that no template can name, which the sandbox supplies:
`step` counts, `made` weighs a value, `concat` joins texts.
"""

from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from rwkv_gpu.text.budget import STEP

WANTED = "add_generation_prompt"  # the variable that asks for what opens an answer
NESTING = 16  # Python's own limit for loops is 20; and the time to compile goes up with it
STATEMENTS = (nodes.Import, nodes.FromImport, nodes.Include, nodes.Extends, nodes.Block, nodes.EvalContextModifier)


class Generation(Extension):
    """`{% generation %}`, which marks assistant messages for training: here it is its body only."""

    tags = {"generation"}  # noqa: RUF012  jinja2 wants a set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Instrument(NodeTransformer):
    """Puts the budget into a template: a step in every loop and macro, a weighing of every value that is made."""

    def __init__(self) -> None:
        self._nesting = 0

    def generic_visit(self, node: nodes.Node, *args: Any, **options: Any) -> nodes.Node:
        """Every other node: its parts, if it is allowed at all."""
        if isinstance(node, STATEMENTS):
            raise TemplateSyntaxError(f"{type(node).__name__.lower()} is not for chat templates", node.lineno)
        super().generic_visit(node, *args, **options)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """A step for each time round, and for each item that the loop's own condition looks at."""
        self.visit_Macro(node)
        if node.test is not None:
            node.test = nodes.And(_step(node), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: "nodes.For | nodes.Macro | nodes.CallBlock") -> nodes.Node:
        """A step for each call."""
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
        """[a, b], and whatever else makes a value."""
        self.generic_visit(node)
        return _filter(node, " made")

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """(a, b), which may also be what is assigned to."""
        self.generic_visit(node)
        return node if node.ctx == "store" else _filter(node, " made")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """a[b:c] makes a value, a[b] does not."""
        return self.visit_List(node) if isinstance(node.arg, nodes.Slice) else self.generic_visit(node)


def mark_opening(template: nodes.Template, mark: str) -> bool:
    """Puts a mark before `{% if add_generation_prompt %}...{% endif %}`, where a template ends with that.

    False where that cannot be told from the template: it has more of it, or something else depends on the variable.
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
    """What running the body of `node` once costs, less what is in it that is counted by itself."""
    size = STEP
    for part in node.find_all(nodes.Node):
        size += 8
        if isinstance(part, nodes.TemplateData):
            size += len(part.data)
    return _filter(nodes.Const(size, lineno=node.lineno), " step")
