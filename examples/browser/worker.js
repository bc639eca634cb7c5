// Runs models: a worker, so that the page stays responsive while one computes.  The glue that emcc wrote stands before
// this text and defines Vit, the module with the functions of library/vit.h; malloc and free have the names that the
// linker gives them there (WRAPPED in make/library.mk).
"use strict";
const BYTES_OF_A_FLOAT = 4, BYTES_OF_AN_ERROR = 1024;
let vit, error;    // the module, and the address of a vit_error
const models = []; // {at, facts, pixels, row}: addresses in the module's memory

function room(bytes) {
    const at = vit.___wrap_malloc(bytes);
    if (!at) throw new Error("the browser has no memory for this model");
    return at;
}

function must(result) {
    if (!result) throw new Error(vit.UTF8ToString(error).replace("checkpoint: ", ""));
    return result;
}

const floatsAt = (at, count) => vit.HEAPF32.slice(at / BYTES_OF_A_FLOAT, at / BYTES_OF_A_FLOAT + count);

async function start(wasm) {
    vit = await Vit({wasmBinary: wasm});
    error = room(BYTES_OF_AN_ERROR);
}

function open(bytes) {
    const file = room(bytes.length);
    vit.HEAPU8.set(bytes, file);
    const at = vit._vit_open_memory(file, bytes.length, error);
    vit.___wrap_free(file);
    must(at);
    const facts = {height: vit._vit_height(at), width: vit._vit_width(at), classes: vit._vit_classes(at),
                   rows: vit._vit_rows(at), columns: vit._vit_columns(at), blocks: vit._vit_blocks(at),
                   heads: vit._vit_heads(at), parameters: vit._vit_parameters(at),
                   operator: vit.UTF8ToString(vit._vit_operator(at))};
    const nameOf = i => vit.UTF8ToString(vit._vit_class_name(at, i)) || `class ${i}`;
    facts.names = Array.from({length: facts.classes}, (_, i) => nameOf(i));
    const most = Math.max(facts.classes, facts.rows * facts.columns);
    models.push({at, facts, pixels: room(3 * facts.height * facts.width), row: room(BYTES_OF_A_FLOAT * most)});
    return facts;
}

// [blocks,heads,rows * columns]: the weights of every head for one token; null: there are none.
function attention({at, facts, row}, token) {
    const count = facts.rows * facts.columns, all = new Float32Array(facts.blocks * facts.heads * count);
    for (let i = 0; i < facts.blocks * facts.heads; i++) {
        must(vit._vit_attention(at, Math.floor(i / facts.heads), i % facts.heads, token, row, error));
        all.set(floatsAt(row, count), i * count);
    }
    return facts.blocks ? all : null;
}

function run({model: index, pixels, token}) {
    const model = models[index], {at, facts, row} = model, began = performance.now();
    vit.HEAPU8.set(pixels, model.pixels);
    must(vit._vit_classify(at, model.pixels, facts.height, facts.width, row, error));
    const ms = performance.now() - began;
    must(vit._vit_logits(at, row, error));
    const answer = {logits: floatsAt(row, facts.classes), ms};
    if (token >= 0) answer.weights = attention(model, token);
    return answer;
}

onmessage = async ({data}) => {
    let answer = {};
    try {
        if (data.kind === "start") await start(data.wasm);
        else if (data.kind === "open") answer.facts = open(data.bytes);
        else answer = run(data);
    } catch (error) {
        answer = {error: error.message || String(error)};
    }
    postMessage({...answer, id: data.id});
};
