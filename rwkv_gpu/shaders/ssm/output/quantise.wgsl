// y is integers as well, where each sequence has one row: a workgroup has whole chunks of 32 columns.
// needs lib/store_quantised: store_quantised
@group(0) @binding(7) var<storage, read_write> quantised: array<u32>;

const_assert SLICE % 32u == 0u;

var<workgroup> found: array<f32, SLICE>;

fn collect_output(own: u32, value: f32) { found[own] = value; }

fn quantise_output(row: u32, first: u32, lane: u32) {
    workgroupBarrier();
    if lane < SLICE4 {
        let values = vec4f(found[4u * lane], found[4u * lane + 1u], found[4u * lane + 2u], found[4u * lane + 3u]);
        store_quantised(values, 0u, row, first / 4u + lane, H * P / 32u, 1.0, true);
    }
}
