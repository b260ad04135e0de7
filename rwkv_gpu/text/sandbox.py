"""A jinja2 environment in which a hostile template can neither access anything nor run for long.

Three measures ensure this. Only plain values are accessible: the methods, filters and tests listed below, no imports,
no blocks. Every loop, call, filter and lookup is charged to a budget and checks the clock; every value is weighed when
it is created, and operations that can amplify their input are bounded beforehand (`growth`). No value exceeds its
limit, so a single uninterruptible Python operation stays short.

A template can still use the whole budget before it is refused: its seconds of one core and its bytes of memory (four
times as many if one wide character widens a text). Two things cannot be interrupted. A single Python operation on
values of the largest size (a sort, a comparison) may take some tenths of a second. Compiling a template of the largest
size may take some seconds.
"""

from collections.abc import Callable, Iterator
from typing import Any

from jinja2 import nodes, pass_context, pass_environment
from jinja2.ext import LoopControlExtension
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace

from rwkv_gpu.text import growth
from rwkv_gpu.text.budget import STEP, Budget, Exceeded, Limits
from rwkv_gpu.text.instrument import Generation, Instrument, mark_opening


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FILTERS = _names(
    "abs batch capitalize center count d default dictsort e escape first float format groupby indent int items join "
    "last length list lower map max min reject rejectattr replace reverse round safe select selectattr slice sort "
    "string sum title tojson trim truncate unique upper urlencode wordcount"
)
TESTS = _names(
    "!= < <= == > >= boolean defined divisibleby eq equalto even false float ge greaterthan gt in integer iterable le "
    "lessthan lower lt mapping ne none number odd sameas sequence string true undefined upper"
)
ATTRIBUTES: dict[type, frozenset[str]] = {
    str: _names(
        "capitalize casefold center count endswith expandtabs find format index isalnum isalpha isascii isdecimal "
        "isdigit islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition removeprefix "
        "removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase "
        "title upper zfill"
    ),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"append", "copy", "count", "index", "pop"}),
    tuple: frozenset({"count", "grouper", "index", "list"}),
    LoopContext: _names(
        "changed cycle depth depth0 first index index0 last length nextitem previtem revindex revindex0"
    ),
    Macro: frozenset({"name"}),
}


class Refused(Exception):
    """A template called raise_exception."""


class Notes(Namespace):
    """A namespace whose repr shows no contents, as it may contain itself."""

    def __repr__(self) -> str:
        return "<namespace>"


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment. It renders one template at a time, for which `budget` is set."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, limits: Limits) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # otherwise jinja2 would run constant parts during compilation
            finalize=_shown,
            extensions=[LoopControlExtension, Generation],
            cache_size=0,
        )
        self.limits = limits
        self.budget = Budget(limits)
        self.marks_opening = False  # whether the opening of answers was found, once a template is prepared
        filters = {**self.filters, "tojson": growth.tojson, "safe": str, "e": _escape, "escape": _escape}
        self.filters = {name: _guard_filter(name, filters[name]) for name in sorted(FILTERS)}
        self.filters |= {" made": _made, " concat": _concat, " step": _stepped}
        tests: dict[str, Any] = {**self.tests}
        self.tests = {name: _guard_test(tests[name]) for name in sorted(TESTS)}
        self.globals = {"range": safe_range, "dict": dict, "namespace": Notes, "raise_exception": _raise_exception}

    def prepare(self, source: str, mark: str) -> nodes.Template:
        """The parsed template with the budget, and with a mark before the opening of an answer."""
        parsed = self.parse(source)
        self.marks_opening = mark_opening(parsed, mark)
        tree: nodes.Template = Instrument().visit(parsed)
        return tree.set_environment(self)  # type: ignore[return-value]  # it returns itself

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ARG002  jinja2's signature
        """Allows only the names listed above, and every name of a namespace, which holds the template's own values."""
        if isinstance(obj, Notes):
            return not attr.startswith("_")
        return any(isinstance(obj, kind) and attr in names for kind, names in ATTRIBUTES.items())

    def getattr(self, obj: Any, attribute: str) -> Any:
        """obj.attribute"""
        self.budget.spend()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """obj[argument]"""
        self.budget.spend()
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """str.format with a size bound; format_map is refused."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None or value.__name__ != "format":
            return None

        def measured(*args: Any, **kwargs: Any) -> str:
            self.budget.allow(growth.braces(self.budget, value.__self__, *args, **kwargs))
            return wrapped(*args, **kwargs)

        return measured

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """left operator right"""
        size = growth.OPERATORS.get(operator)
        if size is not None:
            self.budget.allow(size(self.budget, left, right))
        value = super().call_binop(context, operator, left, right)
        self.budget.made(value)
        return value

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """obj(...)"""
        budget = __self.budget
        budget.spend()
        for argument in (*args, *kwargs.values()):
            budget.weigh(argument)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str) and __obj.__name__ in growth.METHODS:
            given = {name: value for name, value in kwargs.items() if name not in ("_loop_vars", "_block_vars")}
            budget.allow(growth.METHODS[__obj.__name__](budget, owner, *args, **given))
        if budget.calls >= __self.limits.depth:
            raise Exceeded(f"calls itself more than {__self.limits.depth} deep")
        if isinstance(owner, list) and __obj.__name__ == "append":
            return __self._append(owner, *args)
        budget.calls += 1
        try:
            value = super().call(__context, __obj, *args, **kwargs)
        finally:
            budget.calls -= 1
        budget.made(value)
        return value

    def _append(self, items: list[Any], value: Any) -> None:
        """Adds a copy of a value to a list, so that no list contains itself."""
        self.budget.allow(self.budget.weigh([*items, value])[0])
        self.budget.spend(STEP * (1 + len(items)))
        items.append(_copied(value))
        self.budget.grown()


def _copied(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_copied, value))
    return {key: _copied(entry) for key, entry in value.items()} if isinstance(value, dict) else value


def _budget(environment: Any) -> Budget:
    budget: Budget = environment.budget
    return budget


def _guard_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A jinja2 filter with a size bound before, charging after, and without lazy results."""
    size = growth.FILTERS.get(name)
    first = getattr(function, "jinja_pass_arg", None)  # set by jinja2's pass_context and similar decorators

    @pass_context
    def guarded(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context.environment)
        budget.spend(STEP * (1 + len(value)) if isinstance(value, list | tuple | dict | range) else STEP)
        for argument in (value, *args, *kwargs.values()):
            budget.weigh(argument)
        if size is not None:
            budget.allow(size(budget, value, *args, **kwargs))
        passed = {"context": (context,), "environment": (context.environment,), "eval_context": (context.eval_ctx,)}
        result = function(*(passed[first.name] if first is not None else ()), value, *args, **kwargs)
        if isinstance(result, Iterator):
            result = list(result)
        budget.made(result)
        return result

    return guarded


def _guard_test(function: Callable[..., bool]) -> Callable[..., bool]:
    @pass_environment
    def guarded(environment: Any, *args: Any, **kwargs: Any) -> bool:
        _budget(environment).spend()
        return function(*args, **kwargs)

    return guarded


@pass_environment
def _made(environment: Any, value: Any) -> Any:
    _budget(environment).made(value)
    return value


@pass_environment
def _concat(environment: Any, values: list[Any]) -> str:
    budget = _budget(environment)
    budget.allow(budget.weigh(values)[0])
    text = "".join(map(str, values))
    budget.made(text)
    return text


@pass_environment
def _stepped(environment: Any, size: int) -> bool:
    _budget(environment).spend(max(STEP, size))
    return True


@pass_context
def _shown(context: Context, value: Any) -> str:
    """The text of an expression in {{ }}."""
    budget = _budget(context.environment)
    budget.weigh(value)
    text = str(value)
    budget.made(text)
    return text


def _escape(value: Any) -> str:
    text = str(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&#34;").replace("'", "&#39;")


def _raise_exception(message: Any) -> None:
    raise Refused(str(message)[:500])
