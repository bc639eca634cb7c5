// What tests/report/check_page.py asks a page that a browser shows: an expression that gives an object of sentences,
// one for each defect, and of the places of its charts, of its pictures, and of texts that may be too pale.
(() => {
    const SHRUNK = 0.18;    // of a text's box above and below, where letters have no ink
    const TOUCHING = 1;     // pixels by which boxes may overlap
    const CONTRAST = 3;     // between text and ground that need no look at pixels
    const SMALLEST = 7;     // pixels of a letter's size
    document.querySelectorAll("details").forEach(details => { details.open = true; });
    const page = document.scrollingElement;
    const short = text => JSON.stringify(text.trim().replace(/\s+/g, " ").slice(0, 40));
    const size = element => parseFloat(getComputedStyle(element).fontSize);
    const scale = matrix => Math.sqrt(Math.abs(matrix.a * matrix.d - matrix.b * matrix.c));

    // == Where texts are: convex polygons in pixels of the window =====================================================

    const corners = (x, y, width, height) => {
        const top = y + SHRUNK * height, bottom = y + (1 - SHRUNK) * height;
        return [[x, top], [x + width, top], [x + width, bottom], [x, bottom]];
    };

    // The part of a rectangle that its scrolling ancestors show, or null.
    function visible(rectangle, element) {
        let {left, top, right, bottom} = rectangle;
        for (; element && element !== document.body && element !== page; element = element.parentElement) {
            if (getComputedStyle(element).overflow === "visible" || element.ownerSVGElement) continue;
            const frame = element.getBoundingClientRect();
            left = Math.max(left, frame.left), right = Math.min(right, frame.right);
            top = Math.max(top, frame.top), bottom = Math.min(bottom, frame.bottom);
        }
        return right - left > TOUCHING && bottom - top > TOUCHING ? {left, top, right, bottom} : null;
    }

    function textsOf(node) {
        const element = node.parentElement;
        const about = {element, text: short(node.data), svg: element.ownerSVGElement};
        if (about.svg) {
            const box = element.getBBox(), matrix = element.getScreenCTM();
            if (!box.width || !box.height) return [];
            return [{...about, size: size(element) * scale(matrix),
                     shape: corners(box.x, box.y, box.width, box.height).map(([x, y]) =>
                         [matrix.a * x + matrix.c * y + matrix.e, matrix.b * x + matrix.d * y + matrix.f])}];
        }
        const range = document.createRange();
        range.selectNodeContents(node);
        return [...range.getClientRects()].map(rectangle => visible(rectangle, element)).filter(Boolean)
            .map(part => ({...about, size: size(element),
                           shape: corners(part.left, part.top, part.right - part.left, part.bottom - part.top)}));
    }

    const texts = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (walker.currentNode.data.trim() && !element.closest("script, style, title, noscript") &&
            element.checkVisibility({opacityProperty: true, visibilityProperty: true}))
            texts.push(...textsOf(walker.currentNode));
    }
    for (const text of texts) {
        const xs = text.shape.map(point => point[0]), ys = text.shape.map(point => point[1]);
        text.left = Math.min(...xs), text.right = Math.max(...xs);
        text.top = Math.min(...ys), text.bottom = Math.max(...ys);
    }

    // == Texts over texts =============================================================================================

    // By how many pixels two convex polygons overlap: the least over the directions across their sides.
    function depth(a, b) {
        let least = Infinity;
        for (const shape of [a, b])
            shape.forEach(([x, y], i) => {
                const [next_x, next_y] = shape[(i + 1) % shape.length];
                const length = Math.hypot(next_x - x, next_y - y) || 1;
                const along = ([px, py]) => (py * (next_x - x) - px * (next_y - y)) / length;
                const one = a.map(along), other = b.map(along);
                least = Math.min(least, Math.max(...one) - Math.min(...other), Math.max(...other) - Math.min(...one));
            });
        return least;
    }

    const overlaps = [];
    texts.sort((a, b) => a.top - b.top);
    texts.forEach((a, i) => {
        for (let j = i + 1; j < texts.length && texts[j].top < a.bottom - TOUCHING; j++) {
            const b = texts[j];
            const nested = a.svg && a.element.contains(b.element) || b.svg && b.element.contains(a.element);
            if (b.left < a.right - TOUCHING && a.left < b.right - TOUCHING && !nested &&
                depth(a.shape, b.shape) > TOUCHING)
                overlaps.push(`the texts ${a.text} and ${b.text} overlap`);
        }
    });

    // == Texts that cannot be read ====================================================================================

    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const colours = new Map();
    function rgba(colour) {
        if (!colours.has(colour)) {
            canvas.clearRect(0, 0, 1, 1);
            canvas.fillStyle = colour;
            canvas.fillRect(0, 0, 1, 1);
            colours.set(colour, [...canvas.getImageData(0, 0, 1, 1).data].map(x => x / 255));
        }
        return colours.get(colour);
    }
    const over = (front, back) => front.slice(0, 3).map((x, i) => x * front[3] + back[i] * (1 - front[3]));
    function behind(element) {
        if (!element) return rgba(matchMedia("(prefers-color-scheme: dark)").matches &&
            getComputedStyle(document.documentElement).colorScheme.includes("dark") ? "#121212" : "#ffffff");
        const colour = rgba(getComputedStyle(element).backgroundColor);
        return colour[3] === 1 ? colour : over(colour, behind(element.parentElement));
    }
    const luminance = colour => colour.slice(0, 3)
        .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
        .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
    function contrast(text) {
        const back = behind(text.element), style = getComputedStyle(text.element);
        const pair = [back, over(rgba(text.svg ? style.fill : style.color), back)].map(luminance).sort((a, b) => b - a);
        return (pair[0] + 0.05) / (pair[1] + 0.05);
    }

    // Where an element shows what is in it: as far as the first ancestor that is a frame, hides the rest, or scrolls.
    function frameOf(element) {
        for (; element && element !== document.body && element !== page; element = element.parentElement) {
            const overflow = getComputedStyle(element).overflow;
            if (overflow === "hidden" || overflow === "clip" || element.localName === "figure")
                return element.getBoundingClientRect();
            if (overflow !== "visible") return {left: -Infinity, right: Infinity, top: -Infinity, bottom: Infinity};
        }
        return {left: 0, right: page.clientWidth, top: -scrollY, bottom: page.scrollHeight - scrollY};
    }

    const unreadable = [], pale = [];  // pale: against the ground of the elements around it, which a shape may cover
    for (const text of texts) {
        if (contrast(text) < CONTRAST)
            pale.push({text: text.text, x: text.left + scrollX, y: text.top + scrollY, width: text.right - text.left,
                       height: text.bottom - text.top});
        if (text.size < SMALLEST) unreadable.push(`the text ${text.text} is ${text.size.toFixed(1)} pixels high`);
        const frame = frameOf(text.element);
        if (text.left < frame.left - TOUCHING || text.right > frame.right + TOUCHING ||
            text.top < frame.top - TOUCHING || text.bottom > frame.bottom + TOUCHING)
            unreadable.push(`the text ${text.text} is cut off`);
    }
    const wide = page.scrollWidth > page.clientWidth
        ? [`the page is ${page.scrollWidth} pixels wide in a window of ${page.clientWidth}`] : [];

    // == Charts and pictures ==========================================================================================

    const drawn = [];
    for (const element of document.querySelectorAll("svg:not(svg svg), img")) {
        const box = element.checkVisibility() && visible(element.getBoundingClientRect(), element.parentElement);
        const title = element.alt || element.getAttribute("aria-label") || element.querySelector("title")?.textContent;
        if (box) drawn.push({name: `${element.localName} ${short(title || "")}`, x: box.left + scrollX, y: box.top + scrollY,
                             width: box.right - box.left, height: box.bottom - box.top});
    }

    const broken = [...document.images].filter(image => !image.complete || !image.naturalWidth)
        .map(image => `the picture ${short(image.alt)} cannot be shown`);
    return {defects: [...overlaps, ...unreadable, ...wide, ...broken], pale, drawn, texts: texts.length,
            width: page.clientWidth, height: page.scrollHeight};
})()
