"""Options of commands that apply a chat template."""

import click

from rwkv_gpu.text.builtin_templates import BUILT_IN

system_option = click.option("-sys", "--system", "--system-prompt", metavar="TEXT", help="System prompt.")
template_option = click.option(
    "--template",
    "--chat-template",
    metavar="NAME|FILE",
    help=f"Chat template: a jinja2 file, or one of {', '.join(BUILT_IN)}. Default: the model's own.",
)
