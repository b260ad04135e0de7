// Writes out the sums in the fragments of a workgroup's subgroups, adding them up first if subgroups divide columns
//
// Fragment (i, j) of a subgroup has rows m of its i-th S rows of W and rows t of its j-th S rows of x. AT_ONCE fragments of
// each subgroup are in workgroup memory at a time: one, or all. Other inputs of the epilogue are loaded before waiting for
// the sums, for up to ASKED sums of a lane at once.
// needs linear/gemm_matrix: put; epilogue: epilogue_inputs; kept sums: keep; columns of sums: last_of_all, sums_at
const ALONG_M = R / (FM * S);           // subgroups
const ALONG_T = TB / (FT * S);
const_assert FM <= 4u && FM != 3u;
const_assert FT <= 4u && FT != 3u;
const_assert WG == SUBGROUP * ALONG_M * ALONG_T * ALONG_K;

const AT_A_TIME_OF_ALL = AT_ONCE * S * S * ALONG_M * ALONG_T;      // sums of all subgroups at a time
const OF_A_LANE = (AT_A_TIME_OF_ALL / PER_OUT + WG - 1u) / WG;
const ASKED = min(OF_A_LANE, MAX_ASKED);

var<workgroup> y_tile: array<f32, AT_A_TIME_OF_ALL * ALONG_K>;

fn fragment_at(subgroup: u32, i: u32, j: u32) -> u32 {
    return (subgroup * AT_ONCE + (j * FM + i) % AT_ONCE) * S * S;
}

// Called after each fragment, and after the last one.
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

// Finishes `count` fragments of each subgroup in workgroup memory, [t, m], adding the sums of other subgroups for the same rows.
fn put_fragments(first: u32, count: u32, lane: u32) {
    let end = count * S * S * ALONG_M * ALONG_T;
    var wanted: array<vec3f, ASKED>;
    for (var base = 0u; base < end; base += ASKED * WG * PER_OUT) {
        for (var i = 0u; i < ASKED; i++) {
            let place = place_in_tile(first, min(base + (i * WG + lane) * PER_OUT, end - PER_OUT));
            wanted[i] = want(place.x, place.y);
        }
        if base == 0u {
            workgroupBarrier();
            if last_of_all(first, lane) == 0u {
                return;
            }
        }
        for (var i = 0u; i < ASKED; i++) {
            let n = base + (i * WG + lane) * PER_OUT;
            let place = place_in_tile(first, min(n, end - PER_OUT));
            if n < end {
                let sums = sums_at(n);
                put(place.x, place.y, sums.x, sums.y, wanted[i]);
            }
            keep(place.x, place.y, n < end);
        }
    }
    workgroupBarrier();
}

// The epilogue inputs for row m of W and row t of x of a workgroup.
fn want(m: u32, t: u32) -> vec3f {
    return epilogue_inputs(matrix, min(t0 + t, step.rows - 1u), min(row0 + m, matrix.rows - PER_OUT));
}

// Row m of W and row t of x of a sum.
fn place_in_tile(first: u32, n: u32) -> vec2u {
    let e = n % (S * S);
    let subgroup = n / (S * S) % (ALONG_M * ALONG_T);
    let held = n / (S * S * ALONG_M * ALONG_T);
    let m = (subgroup % ALONG_M * FM + (first + held) % FM) * S + e % S;
    return vec2u(m, (subgroup / ALONG_M * FT + (first + held) / FM) * S + e / S);
}

// The sum over the columns of a workgroup and, for gated pairs, that of the next row.
fn own_sums(n: u32) -> vec2f {
    var sums = vec2f();
    for (var k = 0u; k < ALONG_K; k++) {
        let at = tile_place(n, k);
        sums += vec2f(y_tile[at], y_tile[at + PER_OUT - 1u]);
    }
    return sums;
}

// The place of a sum of the subgroup with the k-th share of the columns.
fn tile_place(n: u32, k: u32) -> u32 {
    let subgroup = n / (S * S) % (ALONG_M * ALONG_T);
    let held = n / (S * S * ALONG_M * ALONG_T);
    return ((k * ALONG_M * ALONG_T + subgroup) * AT_ONCE + held) * S * S + n % (S * S);
}
