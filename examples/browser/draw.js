// Ways to a picture: the brush, an example, a file that is chosen, dropped or pasted.
"use strict";

// == Undo =============================================================================================================

function remember() {
    state.undo = [...state.undo, drawing.getImageData(0, 0, SIDE, SIDE)].slice(-MOST_UNDO);
    $("undo").disabled = false;
}
$("undo").onclick = () => {
    drawing.putImageData(state.undo.pop(), 0, 0);
    $("undo").disabled = !state.undo.length;
    look();
};

function clear() {
    drawing.fillStyle = rgb(GROUND);
    drawing.fillRect(0, 0, SIDE, SIDE);
}
$("clear").onclick = () => { remember(); clear(); look(); };

// == The brush ========================================================================================================

for (const [i, [name, ...colour]] of COLOURS.entries()) {
    const input = make("input", {type: "radio", name: "colour", checked: i === 1, title: name, ariaLabel: name});
    input.style.background = rgb(colour);
    input.onchange = () => { state.colour = colour; };
    $("colours").append(make("label", {}, input));
}

let pointer = null, last = null; // the one that draws, and where it was

function brushTo(event) {
    const box = $("drawing").getBoundingClientRect(), width = Number($("brush").value);
    const at = [(event.clientX - box.left) / box.width * SIDE, (event.clientY - box.top) / box.height * SIDE];
    drawing.strokeStyle = drawing.fillStyle = rgb(state.colour);
    drawing.lineWidth = width;
    drawing.lineCap = "round";
    drawing.beginPath();
    if (last) {
        drawing.moveTo(...last);
        drawing.lineTo(...at);
        drawing.stroke();
    } else { // a line without length has no ends either
        drawing.arc(...at, width / 2, 0, 7);
        drawing.fill();
    }
    last = at;
    look();
}

$("drawing").onpointerdown = event => {
    if (event.button || pointer !== null) return;
    event.preventDefault();
    remember();
    pointer = event.pointerId;
    last = null;
    $("drawing").setPointerCapture(pointer);
    brushTo(event);
};
$("drawing").onpointermove = event => {
    if (event.pointerId !== pointer) return;
    const steps = event.getCoalescedEvents?.() || [];
    for (const step of steps.length ? steps : [event]) brushTo(step);
};
$("drawing").onpointerup = $("drawing").onpointercancel = () => { pointer = null; };

// == Examples: outlines of data/sets/shapes.c, in units of their radius ===============================================

const POLYGONS = {
    square: [[-.8, -.8], [.8, -.8], [.8, .8], [-.8, .8]],
    triangle: [[0, -1.05], [.91, .525], [-.91, .525]],
    cross: [[-.3, -1], [.3, -1], [.3, -.3], [1, -.3], [1, .3], [.3, .3], [.3, 1], [-.3, 1], [-.3, .3], [-1, .3],
            [-1, -.3], [-.3, -.3]],
    star: [[0, -1.1], [.26, -.36], [1.05, -.34], [.43, .14], [.65, .89], [0, .45], [-.65, .89], [-.43, .14],
           [-1.05, -.34], [-.26, -.36]],
    arrow: [[0, -1.05], [.85, -.1], [.28, -.1], [.28, 1], [-.28, 1], [-.28, -.1], [-.85, -.1]],
    hourglass: [[-.75, -.95], [.75, -.95], [.1, 0], [.75, .95], [-.75, .95], [-.1, 0]],
};
const CURVES = {
    disc: path => path.arc(0, 0, 1, 0, 7),
    ring: path => { path.arc(0, 0, 1, 0, 7); path.moveTo(.52, 0); path.arc(0, 0, .52, 0, 7, true); },
    crescent: path => { path.arc(0, 0, 1, 1.1066, -1.1066); path.arc(.55, 0, .9, -1.6847, 1.6847, true); },
    heart: path => {
        path.moveTo(0, .88);
        path.lineTo(-.8, .08);
        path.arc(-.4, -.32, .5657, Math.PI * .75, Math.PI * 1.75);
        path.arc(.4, -.32, .5657, Math.PI * 1.25, Math.PI * .25);
    },
};
const FIGURES = ["disc", "ring", "square", "triangle", "cross", "star", "heart", "crescent", "arrow", "hourglass"];

function outline(name) {
    const path = new Path2D();
    if (POLYGONS[name]) POLYGONS[name].forEach(([x, y], i) => i ? path.lineTo(x, y) : path.moveTo(x, y));
    else CURVES[name](path);
    path.closePath();
    return path;
}

function drawFigure(name, x, y, radius, angle, colour) {
    drawing.save();
    drawing.translate(x, y);
    drawing.rotate(angle);
    drawing.scale(radius, radius);
    drawing.fillStyle = rgb(colour);
    drawing.fill(outline(name), "evenodd");
    drawing.restore();
}

let example = 5;
$("example").onclick = () => {
    const between = (a, b) => a + Math.random() * (b - a);
    const colour = (a, b) => [0, 1, 2].map(() => Math.round(between(a, b)));
    const radius = between(60, 92), margin = 1.14 * radius;
    remember();
    drawing.fillStyle = rgb(colour(20, 100));
    drawing.fillRect(0, 0, SIDE, SIDE);
    drawFigure(FIGURES[example++ % FIGURES.length], between(margin, SIDE - margin), between(margin, SIDE - margin),
               radius, between(0, 2 * Math.PI), colour(140, 235));
    look();
};

// == Files ============================================================================================================

async function takePicture(file) {
    const picture = await createImageBitmap(file), side = Math.min(picture.width, picture.height);
    remember();
    clear(); // what a picture with transparency does not cover
    drawing.imageSmoothingQuality = "high";
    drawing.drawImage(picture, (picture.width - side) / 2, (picture.height - side) / 2, side, side, 0, 0, SIDE, SIDE);
    look();
}

async function takeFile(file) {
    trouble("");
    try {
        if (file.name.endsWith(".safetensors"))
            choose(await addModel(file.name.replace(".safetensors", ""), new Uint8Array(await file.arrayBuffer())));
        else await takePicture(file);
    } catch (error) {
        trouble(error.name === "InvalidStateError" || error.name === "EncodingError" ?
            `${file.name}: the browser cannot read this as a picture` : `${file.name}: ${error.message}`);
    }
}
$("choose").onclick = () => $("file").click();
$("file").onchange = () => { if ($("file").files[0]) takeFile($("file").files[0]); $("file").value = ""; };
addEventListener("dragover", event => { event.preventDefault(); document.body.classList.add("dropping"); });
addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
addEventListener("drop", event => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    if (event.dataTransfer.files[0]) takeFile(event.dataTransfer.files[0]);
});
addEventListener("paste", event => {
    const file = [...event.clipboardData.files][0];
    if (file) takeFile(file);
});

// == Start ============================================================================================================

function repaint() {
    const scale = stops(), image = new ImageData(64, 1);
    for (let i = 0; i < 64; i++) image.data.set([...heat(i / 63, scale), 255], 4 * i);
    $("scale").getContext("2d").putImageData(image, 0, 0);
    if (now()?.seen) showMaps();
}

async function start() {
    clear();
    drawFigure("star", 128, 134, 88, .2, state.colour);
    await ask({kind: "start", wasm: bytesOf($("wasm").textContent)}).catch(error => {
        throw new Error(`this browser cannot run the library: ${error.message}`);
    });
    for (const {name, accuracy, bytes} of JSON.parse($("checkpoints").textContent))
        await addModel(name, bytesOf(bytes), accuracy);
    choose(0);
    await state.busy;
    chooseToken(Math.floor(now().facts.rows / 2) * now().facts.columns + Math.floor(now().facts.columns / 2));
    await state.busy;
    repaint();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    new ResizeObserver(() => { if (now()?.seen) showToken(); }).observe($("view"));
}
const started = start().catch(error => trouble(error.message));
