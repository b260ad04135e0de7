"""The roofline of a device and the steps of a model under it, as an SVG."""

import math
from collections.abc import Iterator, Sequence
from html import escape

from .profiling import Profiled
from .roofline import Roofline

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 900, 560, 80, 60, 40, 30
COLOURS = ("#2166ac", "#b2182b", "#1b7837", "#762a83", "#e08214", "#35978f", "#c51b7d", "#666666")


class Axes:
    """Powers of ten to places in the picture: flops for each byte across, GFLOP/s up."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        across, up = ([math.log10(point[i]) for point in points] for i in (0, 1))
        self.x0, self.x1 = math.floor(min(across)), math.ceil(max(across))
        self.y0, self.y1 = math.floor(min(up)), math.ceil(max(up))

    def x(self, intensity: float) -> float:
        """Pixels from the left."""
        share = (math.log10(intensity) - self.x0) / max(1, self.x1 - self.x0)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, gflops: float) -> float:
        """Pixels from the top."""
        share = (math.log10(gflops) - self.y0) / max(1, self.y1 - self.y0)
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def picture(profiles: Sequence[Profiled], title: str) -> str:
    """The whole file. A step that computes nothing has no place in it."""
    roofline = profiles[0].roofline
    steps = [(one, step) for one in profiles for step in one.profile.steps if step.flops and step.nbytes]
    places = [(step.flops / step.nbytes, step.gflops) for _, step in steps]
    knee = roofline.flops_per_second / roofline.bytes_per_second
    axes = Axes([*places, (knee / 4, roofline.flops_per_second / 1e9), (knee * 16, roofline.flops_per_second / 1e9)])
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"',
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
        *_grid(axes),
        *_roof(axes, roofline),
    ]
    for (one, step), (intensity, gflops) in zip(steps, places, strict=True):
        colour = COLOURS[profiles.index(one) % len(COLOURS)]
        radius = 3 + 9 * math.sqrt(step.seconds / one.profile.seconds)
        told = f"{one.name}: {step.name}, {step.seconds * 1e3:.3f} ms, {one.share(step):.0%} of the roofline"
        lines.append(
            f'<circle cx="{axes.x(intensity):.1f}" cy="{axes.y(gflops):.1f}" r="{radius:.1f}" fill="{colour}" '
            f'fill-opacity="0.6"><title>{escape(told)}</title></circle>'
        )
    for number, one in enumerate(profiles):
        y, colour = HEIGHT - BOTTOM - 12 - 18 * number, COLOURS[number % len(COLOURS)]
        lines.append(f'<circle cx="{WIDTH - 190}" cy="{y - 4}" r="5" fill="{colour}"/>')
        lines.append(f'<text x="{WIDTH - 178}" y="{y}">{escape(one.name)}</text>')
    return "\n".join([*lines, "</svg>\n"])


def _roof(axes: Axes, roofline: Roofline) -> Iterator[str]:
    """Bytes that bound on the left, flops on the right."""
    low, high = 10.0**axes.x0, 10.0**axes.x1
    most, stream = roofline.flops_per_second / 1e9, roofline.bytes_per_second / 1e9
    start = max(low, 10.0**axes.y0 / stream)
    corners = [(start, stream * start), (most / stream, most), (high, most)]
    path = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in corners)
    yield f'<polyline points="{path}" fill="none" stroke="black" stroke-width="2"/>'
    yield (
        f'<text x="{axes.x(high) - 8:.1f}" y="{axes.y(most) - 8:.1f}" text-anchor="end">'
        f"{most:,.0f} GFLOP/s, {stream:,.1f} GB/s</text>"
    )


def _grid(axes: Axes) -> Iterator[str]:
    line = '<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="#ddd"/>'
    for power in range(axes.x0, axes.x1 + 1):
        x = axes.x(10.0**power)
        yield line.format(x, TOP, x, HEIGHT - BOTTOM)
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10.0**power:g}</text>'
    for power in range(axes.y0, axes.y1 + 1):
        y = axes.y(10.0**power)
        yield line.format(LEFT, y, WIDTH - RIGHT, y)
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
    yield f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 16}" text-anchor="middle">flops for each byte</text>'
    yield f'<text x="20" y="{HEIGHT / 2}" transform="rotate(-90 20 {HEIGHT / 2})" text-anchor="middle">GFLOP/s</text>'
