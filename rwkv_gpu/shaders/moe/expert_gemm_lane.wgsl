// y[n, m] = result(W_e[m, :] · x[n, :])      a subgroup of 8 for a tile of choices n; each lane has R rows to itself
// Suits software Vulkan: x is loaded once by 8 lanes and broadcast, and nothing is reduced.
// needs choices: tile_at; formats/runs: run_quants, run_scale; lib/lanes/broadcast: spread
// needs lib/lanes/products: add_products; moe/matrices: row_runs; moe/tiles: input_of; moe/write: write; rows: x4
const LANES = 8u;       // lanes that have rows to themselves
const CHUNK = 32u;      // 8 lanes load a vec4 each
const CHUNKS = (K + CHUNK - 1u) / CHUNK;
const PARTS = CHUNK / RUN;

const_assert WG == LANES;

fn run(group: u32, lane: u32) {
    let tile = tile_at(group / BLOCKS, group % BLOCKS, lane);
    if tile.count == 0u {
        return;
    }
    let m0 = (group % BLOCKS * LANES + lane) * OUTS;
    var starts: array<u32, TB>;
    for (var t = 0u; t < TB; t++) {
        starts[t] = input_of(tile, t);
    }
    var acc: array<f32, R * TB>;
    for (var a = 0u; a < R * TB; a++) {
        acc[a] = 0.0;
    }
    for (var c = 0u; c < CHUNKS; c++) {
        var q: array<array<vec4f, RUN / 4u>, R * PARTS>;
        var scale: array<vec2f, R * PARTS>;
        for (var j = 0u; j < R; j++) {
            let i = row_runs(tile.expert, m0, j) + c * PARTS;
            for (var p = 0u; p < PARTS; p++) {
                q[j * PARTS + p] = run_quants(i + p);
                scale[j * PARTS + p] = run_scale(i + p);
            }
        }
        for (var t = 0u; t < TB; t++) {
            if t >= tile.count {
                continue;       // not `break`, so that compilers can unroll the loop
            }
            var values = spread(x4(starts[t], c * CHUNK + 4u * lane, K));
            add_products(&acc, &q, &scale, &values, t);
        }
    }
    for (var t = 0u; t < TB; t++) {
        for (var o = 0u; o < OUTS; o++) {
            if m0 + o < M && t < tile.count {
                let j = o * MATRICES;
                write(tile, t, m0 + o, acc[j * TB + t], acc[(j + MATRICES - 1u) * TB + t]);
            }
        }
    }
}
