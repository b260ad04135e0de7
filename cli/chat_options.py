"""Options of commands that apply a chat template."""

import click

system_option = click.option("-sys", "--system", "--system-prompt", metavar="TEXT", help="System prompt.")
template_option = click.option(
    "--template",
    "--chat-template",
    metavar="NAME|FILE",
    help="Chat template: the name of a built-in one, or a jinja2 file. Default: the model's own.",
)
