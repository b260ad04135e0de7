// Sums of a workgroup's subgroups on their way out of fragments: added up where subgroups share out columns, then put
//
// Fragment (i, j) of a subgroup has rows m of its i-th S rows of W and rows t of its j-th S rows of x. Of each subgroup,
// AT_ONCE fragments lie in workgroup memory at a time: one, or all.
// needs linear/gemm_matrix: put
const ALONG_M = R / (FM * S);           // subgroups
const ALONG_T = TB / (FT * S);
const_assert FM <= 4u && FM != 3u;
const_assert FT <= 4u && FT != 3u;
const_assert WG == SUBGROUP * ALONG_M * ALONG_T * ALONG_K;

var<workgroup> y_tile: array<f32, AT_ONCE * S * S * ALONG_M * ALONG_T * ALONG_K>;

fn fragment_at(subgroup: u32, i: u32, j: u32) -> u32 {
    return (subgroup * AT_ONCE + (j * FM + i) % AT_ONCE) * S * S;
}

// Behind each fragment, and behind the last.
fn finish_one(i: u32, j: u32, lane: u32) {
    if AT_ONCE == 1u {
        put_fragments(j * FM + i, 1u, lane);
    }
}

fn finish_all(lane: u32) {
    if AT_ONCE > 1u {
        put_fragments(0u, FM * FT, lane);
    }
}

// So many fragments of each subgroup, from workgroup memory, where they are [t, m]: with what others have of the same rows.
fn put_fragments(first: u32, count: u32, lane: u32) {
    workgroupBarrier();
    for (var n = lane * PER_OUT; n < count * S * S * ALONG_M * ALONG_T; n += WG * PER_OUT) {
        let e = n % (S * S);
        let subgroup = n / (S * S) % (ALONG_M * ALONG_T);
        let held = n / (S * S * ALONG_M * ALONG_T);
        let m = (subgroup % ALONG_M * FM + (first + held) % FM) * S + e % S;
        let t = (subgroup / ALONG_M * FT + (first + held) / FM) * S + e / S;
        var sums = vec2f();
        for (var k = 0u; k < ALONG_K; k++) {
            let at = ((k * ALONG_M * ALONG_T + subgroup) * AT_ONCE + held) * S * S + e;
            sums += vec2f(y_tile[at], y_tile[at + PER_OUT - 1u]);
        }
        put(m, t, sums.x, sums.y);
    }
    workgroupBarrier();
}
