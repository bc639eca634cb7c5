// Runs models: a worker, so that the page stays responsive while one computes.  The glue that emcc wrote stands before
// this text and defines Vit, which makes a module from the bytes of a .wasm file (browser.c has its functions).
"use strict";
const BYTES_OF_A_FLOAT = 4;
let vit;
const models = []; // addresses of vit_model

function failed() { return new Error(vit.UTF8ToString(vit._browser_error())); }

// What `use` does with a copy of the bytes in the module's memory.
function lent(bytes, use) {
    const at = vit._malloc(Math.max(1, bytes.byteLength));
    if (!at) throw new Error("the browser has no memory for this");
    vit.HEAPU8.set(new Uint8Array(bytes.buffer || bytes, bytes.byteOffset || 0, bytes.byteLength), at);
    try { return use(at); } finally { vit._free(at); }
}

function floats(count, fill) {
    const at = vit._malloc(BYTES_OF_A_FLOAT * count);
    if (!at) throw new Error("the browser has no memory for this");
    try {
        if (!fill(at)) throw failed();
        return vit.HEAPF32.slice(at / 4, at / 4 + count);
    } finally { vit._free(at); }
}

function describe(model) {
    const facts = {};
    for (const name of ["height", "width", "classes", "rows", "columns", "blocks", "heads", "parameters"])
        facts[name] = vit["_browser_" + name](model);
    facts.operator = vit.UTF8ToString(vit._browser_operator(model));
    facts.names = Array.from({length: facts.classes}, (_, i) => vit.UTF8ToString(vit._browser_class(model, i)));
    return facts;
}

function open(bytes) {
    const model = lent(bytes, at => vit._browser_open(at, bytes.byteLength));
    if (!model) throw failed();
    models.push(model);
    return describe(model);
}

// [blocks,heads,tokens]: the weights of one token's row, of every head.
function attention(model, facts, token) {
    const count = facts.rows * facts.columns, all = new Float32Array(facts.blocks * facts.heads * count);
    for (let i = 0; i < facts.blocks * facts.heads; i++)
        all.set(floats(count, at => vit._browser_attention(model, Math.floor(i / facts.heads), i % facts.heads, token, at)),
                i * count);
    return all;
}

function run({model: index, pixels, token}) {
    const model = models[index], facts = describe(model);
    const began = performance.now();
    const logits = lent(pixels, at => floats(facts.classes, to => vit._browser_classify(model, at, to)));
    const answer = {logits, ms: performance.now() - began};
    try { if (token >= 0) answer.weights = attention(model, facts, token); } catch (error) { answer.without = error.message; }
    return answer;
}

onmessage = async ({data}) => {
    let answer;
    try {
        if (data.kind === "start") vit = await Vit({wasmBinary: data.wasm});
        answer = data.kind === "start" ? {} : data.kind === "open" ? {facts: open(data.bytes)} : run(data);
    } catch (error) {
        answer = {error: error.message || String(error)};
    }
    postMessage({...answer, id: data.id});
};
