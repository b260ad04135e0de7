"""Options that several commands share."""

import click

device_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    show_envvar=True,
    envvar="RWKV_GPU_DEVICE",
    metavar="auto|cpu|INDEX|NAME",
    help="The GPU to run on: an index or a part of a name from `rwkv-gpu devices`, or cpu for numpy.",
)
