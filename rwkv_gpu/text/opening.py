"""Finds what opens an answer at the end of a template, so that one run gives a prompt with it and without it."""

from jinja2 import nodes

WANTED = "add_generation_prompt"  # the variable that asks for it


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
