// The page: drawing, the models' answers and their attention.  Models run in a worker (worker.js).
"use strict";
const $ = id => document.getElementById(id);
const SIDE = 256;                   // of the drawing, in its own pixels
const MOST_UNDO = 20;
const MOST_TIMES = 20;              // inferences whose median time is shown
const GROUND = [58, 64, 82];
const COLOURS = [["white", 232, 230, 224], ["yellow", 233, 214, 146], ["orange", 235, 178, 142],
                 ["pink", 233, 150, 190], ["violet", 188, 158, 234], ["blue", 148, 194, 234], ["green", 150, 228, 182],
                 ["ground", ...GROUND]];
const NOTES = {
    ripple: "Ripple attention: linear attention whose weights fall off in rings around the token.",
    softmax: "Softmax attention: every token is compared with every other one.",
    lisa: "LiSA: attention by circular convolutions with learned patterns.",
};

const state = {models: [], model: 0, pixels: null, token: null, head: null, busy: null, dirty: false, undo: [],
               colour: COLOURS[1].slice(1)};
const drawing = $("drawing").getContext("2d", {willReadFrequently: true});
const rgb = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
const percent = p => p >= 0.9995 ? "100 %" : `${(100 * p).toFixed(1)} %`;
const make = (name, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
};
const now = () => state.models[state.model];

// == The worker =======================================================================================================

const bytesOf = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
const worker = new Worker(URL.createObjectURL(new Blob([$("worker-source").textContent], {type: "text/javascript"})));
const waiting = new Map();
let asked = 0;
worker.onmessage = ({data}) => {
    const {resolve, reject} = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.error) reject(new Error(data.error)); else resolve(data);
};
worker.onerror = event => trouble(`the worker stopped: ${event.message}`);

function ask(message) {
    return new Promise((resolve, reject) => {
        waiting.set(++asked, {resolve, reject});
        worker.postMessage({...message, id: asked});
    });
}

function trouble(text) {
    $("trouble").textContent = text;
    $("trouble").hidden = !text;
}

// == Models ===========================================================================================================

async function addModel(name, bytes, accuracy) {
    const {facts} = await ask({kind: "open", bytes});
    const i = state.models.length, operator = facts.operator;
    const verdict = make("small", {textContent: " "});
    const input = make("input", {type: "radio", name: "model", value: i, checked: i === state.model});
    input.onchange = () => choose(i);
    $("models").append(make("label", {}, input, make("b", {textContent: name}), verdict));
    state.models.push({name, facts, accuracy, operator, verdict, input, times: [], seen: null});
    return i;
}

function choose(i) {
    const {facts} = state.models[i];
    state.model = i;
    state.models[i].input.checked = true;
    if (state.head && (state.head[0] >= facts.blocks || state.head[1] >= facts.heads)) state.head = null;
    if (state.token >= facts.rows * facts.columns) state.token = null;
    buildClasses();
    buildMaps();
    look();
}

// == Pixels: each one of the model's is the mean of those of the drawing that it covers ===============================

function modelPixels(height, width) {
    const from = drawing.getImageData(0, 0, SIDE, SIDE).data, to = new Uint8Array(height * width * 3);
    const share = (i, size) => {
        const begin = i * SIDE / size, end = (i + 1) * SIDE / size, parts = [];
        for (let at = Math.floor(begin); at < Math.min(SIDE, Math.ceil(end)); at++)
            parts.push([at, Math.min(at + 1, end) - Math.max(at, begin)]);
        return parts;
    };
    const columns = Array.from({length: width}, (_, x) => share(x, width));
    for (let y = 0; y < height; y++) {
        const rows = share(y, height);
        for (let x = 0; x < width; x++) {
            const sum = [0, 0, 0];
            let area = 0;
            for (const [v, tall] of rows) for (const [u, wide] of columns[x]) {
                area += tall * wide;
                for (let c = 0; c < 3; c++) sum[c] += tall * wide * from[4 * (v * SIDE + u) + c];
            }
            for (let c = 0; c < 3; c++) to[3 * (y * width + x) + c] = Math.round(sum[c] / area);
        }
    }
    return to;
}

function showPixels() {
    const {height, width} = now().facts, canvas = $("pixels");
    canvas.width = width, canvas.height = height;
    const image = new ImageData(width, height);
    for (let i = 0; i < width * height; i++) {
        image.data.set(state.pixels.subarray(3 * i, 3 * i + 3), 4 * i);
        image.data[4 * i + 3] = 255;
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
}

// == Running: one inference at a time, always of what is newest =======================================================

function look() {
    state.dirty = true;
    state.busy ||= lookNow();
    return state.busy;
}

async function lookNow() {
    while (state.dirty) {
        state.dirty = false;
        const model = state.model, {facts} = now();
        state.pixels = modelPixels(facts.height, facts.width);
        showPixels();
        try {
            const result = await ask({kind: "run", model, pixels: state.pixels, token: state.token ?? -1});
            if (model !== state.model) continue;
            keep(model, result);
            showAnswer();
            showMaps();
            const blind = state.token !== null && !result.weights;
            trouble(blind ? `${now().name}: its operator has no weights to show` : "");
            for (let i = 0; i < state.models.length && !state.dirty; i++) {
                const other = state.models[i].facts;
                if (i === model) continue;
                keep(i, await ask({kind: "run", model: i, pixels: modelPixels(other.height, other.width), token: -1}));
            }
        } catch (error) {
            trouble(error.message);
        }
    }
    state.busy = null;
}

function keep(i, {logits, ms, weights}) {
    const model = state.models[i], most = Math.max(...logits);
    const powers = Array.from(logits, x => Math.exp(x - most)), sum = powers.reduce((a, b) => a + b);
    const p = powers.map(x => x / sum), best = p.indexOf(Math.max(...p));
    model.seen = {logits, p, best, weights: weights || null};
    model.times = [...model.times, ms].slice(-MOST_TIMES);
    model.verdict.textContent = `${model.facts.names[best]} ${(100 * p[best]).toFixed(0)} %`;
}

// == The answer =======================================================================================================

function buildClasses() {
    $("classes").tBodies[0].replaceChildren(...now().facts.names.map(name => make("tr", {},
        make("th", {scope: "row", textContent: name}),
        make("td", {}, make("div", {className: "bar"}, make("i"))), make("td"))));
}

function showAnswer() {
    const {facts, seen, times, accuracy, operator} = now();
    [...$("classes").rows].forEach((row, i) => {
        row.className = i === seen.best ? "first" : "";
        row.querySelector("i").style.width = `${100 * seen.p[i]}%`;
        row.cells[2].textContent = percent(seen.p[i]);
    });
    $("best").replaceChildren(make("b", {textContent: facts.names[seen.best]}),
                              make("span", {textContent: percent(seen.p[seen.best])}));
    const sorted = [...times].sort((a, b) => a - b), median = sorted[Math.floor(sorted.length / 2)];
    $("about").textContent = `${NOTES[operator] || `Attention: ${operator}.`} ` +
        `${facts.parameters.toLocaleString("en")} parameters` +
        `${accuracy ? `, top-1 ${accuracy} in its run` : ""}. ` +
        `An inference takes ${median.toFixed(1)} ms here.`;
}

// == Attention ========================================================================================================

// Stops of the colour scale: weights below zero, zero, half and the largest one.
function stops() {
    const style = getComputedStyle(document.documentElement);
    return ["--minus", "--low", "--middle", "--high"].map(name => {
        const hex = style.getPropertyValue(name).trim().slice(1), wide = hex.length === 3;
        return [0, 1, 2].map(i => parseInt(wide ? hex[i] + hex[i] : hex.slice(2 * i, 2 * i + 2), 16));
    });
}

function heat(value, [minus, low, middle, high]) {
    const mix = (a, b, t) => a.map((x, i) => x + (b[i] - x) * t);
    if (value < 0) return mix(low, minus, -value);
    return value < 0.5 ? mix(low, middle, 2 * value) : mix(middle, high, 2 * value - 1);
}

const rowOf = (facts, b, h) => {
    const size = facts.rows * facts.columns, at = (b * facts.heads + h) * size;
    return now().seen?.weights?.subarray(at, at + size);
};
const largest = row => row.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
const placeOf = (facts, token) => `row ${Math.floor(token / facts.columns) + 1}, column ${token % facts.columns + 1}`;

function buildMap(b, h) {
    const {rows, columns} = now().facts;
    const button = make("button", {type: "button", disabled: true}, make("canvas", {width: columns, height: rows}),
                        make("small", {textContent: `head ${h + 1}`}));
    button.onclick = () => {
        state.head = state.head?.join() === `${b},${h}` ? null : [b, h];
        showMaps();
    };
    return button;
}

function buildMaps() {
    const {blocks, heads, rows, columns} = now().facts, maps = $("maps");
    for (const [name, value] of Object.entries({heads: Math.min(heads, 6), rows, columns}))
        maps.style.setProperty(`--${name}`, value);
    maps.replaceChildren(...Array.from({length: blocks}, (_, b) => make("fieldset", {},
        make("legend", {textContent: `Block ${b + 1}`}), ...Array.from({length: heads}, (_, h) => buildMap(b, h)))));
}

function paintMap(canvas, row, facts, scale) {
    const image = new ImageData(facts.columns, facts.rows), most = row ? largest(row) || 1 : 1;
    for (let i = 0; i < facts.rows * facts.columns; i++)
        image.data.set([...heat(row ? row[i] / most : 0, scale), 255], 4 * i);
    canvas.getContext("2d").putImageData(image, 0, 0);
}

function showMaps() {
    const {facts} = now(), scale = stops();
    [...$("maps").querySelectorAll("button")].forEach((button, i) => {
        const b = Math.floor(i / facts.heads), h = i % facts.heads, row = rowOf(facts, b, h);
        paintMap(button.firstChild, row, facts, scale);
        button.disabled = !row;
        button.lastChild.textContent = `head ${h + 1}` + (row ? `, at most ${largest(row).toPrecision(2)}` : "");
        button.setAttribute("aria-pressed", state.head?.[0] === b && state.head?.[1] === h);
        button.setAttribute("aria-label", `Block ${b + 1}, head ${h + 1}` + (row ? `: the largest weight is ` +
            `${largest(row).toPrecision(2)}, of the token in ` +
            placeOf(facts, row.map(Math.abs).indexOf(largest(row))) : ""));
    });
    showToken();
}

// The grid, the chosen token and the chosen head's weights over the picture.
function showToken() {
    const {facts} = now(), canvas = $("overlay");
    const side = Math.max(1, $("view").clientWidth), dense = devicePixelRatio || 1;
    canvas.width = canvas.height = Math.round(side * dense);
    const pen = canvas.getContext("2d"), tall = canvas.height / facts.rows, wide = canvas.width / facts.columns;
    const row = state.head && state.token !== null && rowOf(facts, ...state.head), most = row ? largest(row) || 1 : 1;
    for (let i = 0; row && i < row.length; i++) {
        const strength = Math.abs(row[i]) / most;
        pen.fillStyle = row[i] < 0 ? `rgb(245 154 92 / ${0.8 * strength})` : `rgb(0 0 0 / ${0.7 * (1 - strength)})`;
        pen.fillRect(i % facts.columns * wide, Math.floor(i / facts.columns) * tall, wide, tall);
    }
    pen.strokeStyle = "rgb(255 255 255 / .22)";
    pen.lineWidth = dense;
    pen.beginPath();
    for (let x = 1; x < facts.columns; x++) pen.moveTo(x * wide, 0), pen.lineTo(x * wide, canvas.height);
    for (let y = 1; y < facts.rows; y++) pen.moveTo(0, y * tall), pen.lineTo(canvas.width, y * tall);
    pen.stroke();
    if (state.token !== null) {
        const box = [state.token % facts.columns * wide, Math.floor(state.token / facts.columns) * tall, wide, tall];
        for (const [colour, width] of [["#10151a", 5], ["#ffd84d", 3]]) {
            pen.strokeStyle = colour;
            pen.lineWidth = width * dense;
            pen.strokeRect(...box);
        }
    }
    const text = state.token === null ? `${facts.rows} × ${facts.columns} tokens, none chosen yet` :
        `Token in ${placeOf(facts, state.token)}` +
        (row ? `, seen by head ${state.head[1] + 1} of block ${state.head[0] + 1}` : "");
    $("token").textContent = text;
    $("tokens").setAttribute("aria-label", text);
}

function chooseToken(token) {
    const {facts} = now();
    state.token = token;
    if (!state.head) state.head = [Math.max(0, facts.blocks - 1), 0];
    look();
}

$("tokens").onclick = event => {
    const box = $("tokens").getBoundingClientRect(), {rows, columns} = now().facts;
    const cell = (at, size, count) => Math.min(count - 1, Math.max(0, Math.floor(at / size * count)));
    if (!state.models.length) return;
    chooseToken(cell(event.clientY - box.top, box.height, rows) * columns +
                cell(event.clientX - box.left, box.width, columns));
};
$("tokens").onkeydown = event => {
    const step = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
    if (!step || !state.models.length) return;
    const {rows, columns} = now().facts, from = state.token ?? Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    const y = Math.min(rows - 1, Math.max(0, Math.floor(from / columns) + step[0]));
    const x = Math.min(columns - 1, Math.max(0, from % columns + step[1]));
    event.preventDefault();
    chooseToken(y * columns + x);
};
