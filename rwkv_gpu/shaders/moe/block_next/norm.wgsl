// What becomes of the sums of a workgroup is normed next: it is written as float16, too, by lanes that are neighbours as
// the sums are.
// needs lib/matrix_units/to_norm: keep_to_norm
@group(0) @binding(13) var<storage, read> next_gain: array<f32>;    // [M]

const_assert M % 64u == 0u && OWNED % S == 0u && WG % S == 0u;

var<workgroup> collected: array<f32, OWNED>;

fn collect(n: u32, value: f32) { collected[n] = value; }

fn keep_block(t: u32, first: u32, lane: u32) {
    workgroupBarrier();
    let there = lane < OWNED && first + lane < M;
    keep_to_norm(collected[lane % OWNED], next_gain[(first + lane) % M], t, first + lane, M, there);
}
