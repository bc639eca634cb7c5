"""A picture of labelled dots as SVG, which depends only on the figures and not on the machine."""

import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 620, 60, 20, 40, 50
FONT, LETTER, LINE = 11, 6.2, 12  # font size, and the width of a letter and the height of a line, in pixels


def ticks_log(low, high):
    return [m * 10 ** e for e in range(0, 7) for m in (1, 2, 5) if low <= m * 10 ** e <= high]


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def place(dots, names):
    """A box [left, top, right, bottom] for each name near its dot, off all dots, all other names and the edges."""
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in dots]
    boxes = [None] * len(dots)
    # Dots in crowded places choose first.
    crowd = [sum(math.dist(a, b) < 60 for b in dots) for a in dots]
    for i in sorted(range(len(dots)), key=lambda i: (-crowd[i], i)):
        x, y, width = *dots[i], LETTER * len(names[i])
        for distance in range(8, 200, 6):
            for angle in (0, 180, 90, 270, 45, 315, 135, 225, 20, 340, 160, 200, 70, 290, 110, 250):
                dx, dy = distance * math.cos(math.radians(angle)), -distance * math.sin(math.radians(angle))
                left = x + dx - width * (1 - math.cos(math.radians(angle))) / 2
                box = (left, y + dy - LINE / 2, left + width, y + dy + LINE / 2)
                inside = LEFT < box[0] and box[2] < WIDTH - RIGHT and TOP < box[1] and box[3] < HEIGHT - BOTTOM
                if inside and not any(overlap(box, other) for other in taken):
                    boxes[i] = box
                    break
            if boxes[i]:
                break
        boxes[i] = boxes[i] or (x + 8, y - LINE / 2, x + 8 + width, y + LINE / 2)
        taken.append(boxes[i])
    return boxes


def draw(points):
    """points: (name, images per second, top-1 in percent, its standard error)"""
    xs, ys = [p[1] for p in points], [p[2] for p in points]
    low_x, high_x = math.log(min(xs) / 1.15), math.log(max(xs) * 1.15)
    low_y, high_y = min(ys) - 1, max(ys) + 1

    def x_of(value):
        return LEFT + (math.log(value) - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)

    def y_of(value):
        return HEIGHT - BOTTOM - (value - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           f'font-size="{FONT}">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="22" font-size="15" font-weight="bold">Top-1 after ten epochs, %, against images per second '
           'in training, 64 tokens, one thread</text>']
    for tick in ticks_log(math.exp(low_x), math.exp(high_x)):
        out.append(f'<line x1="{x_of(tick):.1f}" y1="{TOP}" x2="{x_of(tick):.1f}" y2="{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>'
                   f'<text x="{x_of(tick):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:,}</text>')
    for tick in range(math.ceil(low_y), math.floor(high_y) + 1):
        if tick % 2 == 0:
            out.append(f'<line x1="{LEFT}" y1="{y_of(tick):.1f}" x2="{WIDTH - RIGHT}" y2="{y_of(tick):.1f}" stroke="#e4e4e4"/>'
                       f'<text x="{LEFT - 8}" y="{y_of(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">images per second</text>')
    dots = [(x_of(p[1]), y_of(p[2])) for p in points]
    for (name, _, top1, error), (x, y), box in zip(points, dots, place(dots, [p[0] for p in points])):
        if error:
            out.append(f'<line x1="{x:.1f}" y1="{y_of(top1 - error):.1f}" x2="{x:.1f}" y2="{y_of(top1 + error):.1f}" '
                       'stroke="#0072b2" stroke-opacity="0.5" stroke-width="1.5"/>')
        nearest = min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])
        if math.dist((x, y), nearest) > 14:
            out.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{nearest[0]:.1f}" y2="{nearest[1]:.1f}" stroke="#999999" '
                       'stroke-width="0.7"/>')
        anchor, at = "middle", (box[0] + box[2]) / 2
        if box[0] >= x:
            anchor, at = "start", box[0]
        elif box[2] <= x:
            anchor, at = "end", box[2]
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="#0072b2"/>'
                   f'<text x="{at:.1f}" y="{box[3] - 2.5:.1f}" text-anchor="{anchor}">{name}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"
