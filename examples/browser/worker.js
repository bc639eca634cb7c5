// Runs models: a worker, so that the page stays responsive while one computes.  The glue that emcc wrote stands before
// this text and defines Vit.  Each model has an instance of the library of its own (browser.c has its functions), as
// each call of train_vit is a process of its own: what it refuses ends that instance alone.
"use strict";
const BYTES_OF_A_FLOAT = 4, CHECKPOINT = "checkpoint";
let library;       // the compiled .wasm file
const models = []; // {vit, facts, pixels, row}: an instance, and addresses in its memory

function room(vit, bytes) {
    const at = vit._malloc(bytes);
    if (!at) throw new Error("the browser has no memory for this model");
    return at;
}

const floatsAt = (vit, at, count) => vit.HEAPF32.slice(at / BYTES_OF_A_FLOAT, at / BYTES_OF_A_FLOAT + count);

async function open(bytes) {
    const vit = await Vit({
        instantiateWasm(imports, done) {
            WebAssembly.instantiate(library, imports).then(instance => done(instance));
            return {};
        },
    });
    vit.FS.writeFile(CHECKPOINT, bytes);
    vit.ccall("browser_open", null, ["string"], [CHECKPOINT]);
    const facts = {};
    for (const name of ["height", "width", "classes", "rows", "columns", "blocks", "heads", "parameters"])
        facts[name] = vit[`_browser_${name}`]();
    facts.operator = vit.UTF8ToString(vit._browser_operator());
    const nameOf = i => vit.UTF8ToString(vit._browser_class(i)) || `class ${i}`;
    facts.names = Array.from({length: facts.classes}, (_, i) => nameOf(i));
    const most = Math.max(facts.classes, facts.rows * facts.columns);
    const pixels = room(vit, 3 * facts.height * facts.width), row = room(vit, BYTES_OF_A_FLOAT * most);
    models.push({vit, facts, pixels, row});
    return facts;
}

// [blocks,heads,rows * columns]: the weights of every head for one token; null: there are none.
function attention({vit, facts, pixels, row}, token) {
    const count = facts.rows * facts.columns, all = new Float32Array(facts.blocks * facts.heads * count);
    for (let i = 0; i < facts.blocks * facts.heads; i++) {
        if (!vit._browser_attention(pixels, Math.floor(i / facts.heads), i % facts.heads, token, row)) return null;
        all.set(floatsAt(vit, row, count), i * count);
    }
    return all;
}

function run({model: index, pixels, token}) {
    const model = models[index], {vit, facts} = model, began = performance.now();
    vit.HEAPU8.set(pixels, model.pixels);
    vit._browser_classify(model.pixels, model.row);
    const answer = {logits: floatsAt(vit, model.row, facts.classes), ms: performance.now() - began};
    if (token >= 0) answer.weights = attention(model, token);
    return answer;
}

onmessage = async ({data}) => {
    let answer = {};
    try {
        if (data.kind === "start") library = await WebAssembly.compile(data.wasm);
        else if (data.kind === "open") answer.facts = await open(data.bytes);
        else answer = run(data);
    } catch (error) {
        answer = {error: (error.message || String(error)).replace(`${CHECKPOINT}: `, "")};
    }
    postMessage({...answer, id: data.id});
};
