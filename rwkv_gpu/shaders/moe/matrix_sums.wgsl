// Writes out the sums of a tile on matrix units, one fragment of x at a time
// needs moe/expert_gemm_matrix: put
const ALONG_M = R / (FM * S);           // subgroups that divide the rows
const OWN4 = C4 / ALONG_K;              // vectors of a step that a subgroup multiplies
const STEPS = (K + COLUMNS - 1u) / COLUMNS;
const_assert WG == SUBGROUP * ALONG_M * ALONG_K;
const_assert OWN4 * 4u % S == 0u;

var<workgroup> live: vec4u;     // fragments of x that have choices; 16 bytes, which keeps the next tiles aligned
var<workgroup> y_tile: array<f32, FM * S * S * ALONG_M * ALONG_K>;

// Writes the sums of all rows with one fragment of x. In workgroup memory, they are [t, m].
fn put_fragments(j: u32, lane: u32) {
    workgroupBarrier();
    for (var base = 0u; base < R / MATRICES * S; base += WG) {
        let n = min(base + lane, R / MATRICES * S - 1u);
        let m = n % (R / MATRICES) * MATRICES;
        let t = n / (R / MATRICES);
        var sums = vec2f();
        for (var k = 0u; k < ALONG_K; k++) {
            let at = (k * R / S + m / S) * S * S + t * S + m % S;
            sums += vec2f(y_tile[at], y_tile[at + MATRICES - 1u]);
        }
        put(m, j * S + t, sums.x, sums.y, base + lane < R / MATRICES * S);
    }
    workgroupBarrier();
}
