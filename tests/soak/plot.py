"""An SVG chart of the samples: one panel per quantity, time on the x axis, restarts as vertical lines."""

from html import escape

WIDTH, HEIGHT, LEFT, GAP = 900, 110, 70, 40
COLOURS = ["#1f5fa8", "#c0504d", "#4f8f3f"]


def svg(title: str, panels: dict[str, dict[str, list[float]]], at_s: list[float], marks_s: list[float]) -> str:
    """Draw panels with their curves by name, one value for each time in `at_s`. `marks_s` are the vertical lines."""
    end_s = max(at_s[-1], 1e-9)
    parts = [f'<text x="{LEFT}" y="20" font-size="15">{escape(title)}</text>']

    def x(second: float) -> float:
        return LEFT + (WIDTH - LEFT - 20) * second / end_s

    for row, (name, curves) in enumerate(panels.items()):
        bottom = 40 + (row + 1) * HEIGHT + row * GAP
        most = max(max(values) for values in curves.values()) * 1.1 or 1
        parts.append(f'<path d="M{LEFT} {bottom - HEIGHT}V{bottom}H{WIDTH - 20}" fill="none" stroke="#888"/>')
        for mark_s in marks_s:
            parts.append(f'<path d="M{x(mark_s):.1f} {bottom}v-{HEIGHT}" stroke="#ddd"/>')
        for value in (0, most / 2, most):
            y = bottom - HEIGHT * value / most + 4
            parts.append(f'<text x="{LEFT - 6}" y="{y:.1f}" text-anchor="end">{value:,.4g}</text>')
        for minute in range(int(end_s // 60) + 1):
            if minute % (1 + int(end_s // 600)) == 0:
                place = f'x="{x(minute * 60):.1f}" y="{bottom + 14}"'
                parts.append(f'<text {place} text-anchor="middle">{minute} min</text>')
        for number, (curve, values) in enumerate(curves.items()):
            places = zip(map(x, at_s), values, strict=True)
            points = " ".join(f"{place:.1f},{bottom - HEIGHT * value / most:.1f}" for place, value in places)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[number]}" stroke-width="1.3"/>')
            label = f'<text x="{LEFT + 8 + 150 * number}" y="{bottom - HEIGHT + 2}" fill="{COLOURS[number]}">'
            parts.append(f"{label}{escape(curve if len(curves) > 1 else name)}</text>")
        if len(curves) > 1:
            parts.append(f'<text x="{WIDTH - 20}" y="{bottom - HEIGHT + 2}" text-anchor="end">{escape(name)}</text>')
    height = 40 + len(panels) * (HEIGHT + GAP)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )
