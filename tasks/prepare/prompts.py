"""Whether a template's generation prompt is the same after every conversation.

Most templates print a constant such as `<|im_start|>assistant\\n`, which needs to be found once a
template. Some look at the conversation (no prompt after a tool's result, `/no_think` in the system
prompt): there the prompt of each turn has to be rendered. The template's syntax tree tells them
apart; in doubt the prompt counts as not constant, which costs time and never a wrong mask.
"""

from __future__ import annotations

from jinja2 import nodes

_FLAG = "add_generation_prompt"


def prompt_is_constant(tree: nodes.Template) -> bool:
    """True if nothing that the template prints for `add_generation_prompt` depends on the row.

    Args:
        tree: The parsed template.
    """
    names = {"messages", "tools"}
    size = 0
    while len(names) > size:
        size = len(names)
        _spread(tree, names, dependent=False)
    return _independent(tree, names, dependent=False)


def _spread(node: nodes.Node, names: set[str], *, dependent: bool) -> None:
    """Adds to `names` the variables that are made from them, or where they decide."""
    if isinstance(node, nodes.For):
        dependent = dependent or _mentions(node.iter, names)
        if dependent:
            names.update(_names(node.target))
    elif isinstance(node, nodes.If):
        dependent = dependent or _mentions(node.test, names)
    elif isinstance(node, (nodes.Assign, nodes.AssignBlock)):
        if dependent or _mentions(node, names):
            names.update(_names(node.target))
    elif isinstance(node, nodes.With):
        if dependent or any(_mentions(value, names) for value in node.values):
            names.update(name for target in node.targets for name in _names(target))
    elif isinstance(node, (nodes.Macro, nodes.CallBlock)):
        # What a caller passes in isn't followed.
        if isinstance(node, nodes.Macro) and _mentions(node, names):
            names.add(node.name)
        dependent = True
    for child in node.iter_child_nodes():
        _spread(child, names, dependent=dependent)


def _independent(node: nodes.Node, names: set[str], *, dependent: bool) -> bool:
    if isinstance(node, (nodes.If, nodes.CondExpr)) and _mentions(node.test, {_FLAG}):
        return not dependent and not any(_mentions(part, names) for part in _shown(node))
    if isinstance(node, nodes.Name) and node.name == _FLAG:
        return False
    if isinstance(node, nodes.For):
        dependent = dependent or _mentions(node.iter, names)
    elif isinstance(node, nodes.If):
        dependent = dependent or _mentions(node.test, names)
    elif isinstance(node, (nodes.Macro, nodes.CallBlock)):
        dependent = True
    return all(_independent(child, names, dependent=dependent) for child in node.iter_child_nodes())


def _shown(node: nodes.If | nodes.CondExpr) -> list[nodes.Node]:
    """What can be printed for a true flag: only the first branch, if the flag alone is asked."""
    if not isinstance(node.test, nodes.Name):
        return [node]
    return list(node.body) if isinstance(node, nodes.If) else [node.expr1]


def _mentions(node: nodes.Node, names: set[str]) -> bool:
    return not names.isdisjoint(_names(node))


def _names(node: nodes.Node) -> set[str]:
    found = {name.name for name in node.find_all(nodes.Name)}
    found.update(reference.name for reference in node.find_all(nodes.NSRef))
    if isinstance(node, (nodes.Name, nodes.NSRef)):
        found.add(node.name)
    return found
