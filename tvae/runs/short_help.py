"""`--help` of the commands that restore a picture: what they need, in a few lines."""

from __future__ import annotations

HELP = """\
{about}

Usage: {command} IMAGE [OUTPUT] [OPTION=VALUE ...]

  image=FILE       picture or stack, or folder or pattern ('photos/*.png') of many
  output=FILE      where the result goes (-o FILE does the same); its ending tells the kind of file
{own}\
  effort=default   fast, default or best: how long it may take
  clean=FILE       clean version of the picture, where there is one: tells PSNR and SSIM
  overwrite=true   write over an output that is there

--help-all explains every option.
"""
OF_TASK = {
    "denoise": "  sigma=LEVEL      standard deviation of the noise in the picture's own units, where it is known\n",
    "inpaint": "  mask=FILE        picture of the same size, nonzero where a pixel is missing\n",
}


def short_help(command: str, about: str, task: str) -> str:
    return HELP.format(about=about.strip(), command=command, own=OF_TASK[task])
