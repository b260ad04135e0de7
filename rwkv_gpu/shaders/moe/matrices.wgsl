// The matrices of the experts of a shard, one or two for each.
struct Shard {
    planes: array<vec4u, 2>,    // the start of each plane of each matrix, in vec4s
    first: u32,                 // expert
    experts: u32,
}

@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(6) var<uniform> shard: Shard;

var<private> plane: vec4u;

const ROW_RUNS = (K + RUN - 1u) / RUN;
const OUTS = R / MATRICES;                      // rows of y per workgroup, or per lane
const_assert R % MATRICES == 0u;
const BLOCKS = (M + LANES * OUTS - 1u) / (LANES * OUTS);

// The first run of row j from m0 on; rows of both matrices alternate. Sets the places of its planes. An expert has
// EXPERT_ROWS rows. If these hold both matrices, the rows of the second begin at SECOND.
fn row_runs(expert: u32, m0: u32, j: u32) -> u32 {
    plane = shard.planes[j % MATRICES];
    return (expert * EXPERT_ROWS + j % MATRICES * SECOND + min(m0 + j / MATRICES, M - 1u)) * ROW_RUNS;
}
