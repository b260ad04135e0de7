// Split-K: a workgroup has one of PARTS parts of the columns of its rows. The last of these workgroups to finish adds up the
// sums of all, so no workgroup waits for another. It always adds in the same order, so results are reproducible.
// needs lib/last_workgroup: count_done; lib/matrix_units/sums: own_sums, tile_place
@group(0) @binding(19) @coherent var<storage, read_write> found: array<vec4f>;  // [blocks of rows, fragments, PARTS, sums / 4]

const FOURS_OF_ALL = AT_A_TIME_OF_ALL / 4u;
const FOURS_OF_A_LANE = (FOURS_OF_ALL + WG - 1u) / WG;

// Whether this workgroup is the last. Workgroup memory holds its own sums before the call, and those of all parts after it.
fn last_of_all(first: u32, lane: u32) -> u32 {
    let block = (matrix.block + row0 / R) * table.t_blocks + t0 / TB;
    let place = block * (FM * FT / AT_ONCE) + first / AT_ONCE;
    let start = place * PARTS * FOURS_OF_ALL;
    for (var n = lane; n < FOURS_OF_ALL; n += WG) {
        let own = vec4f(own_sums(4u * n).x, own_sums(4u * n + 1u).x, own_sums(4u * n + 2u).x, own_sums(4u * n + 3u).x);
        found[start + part * FOURS_OF_ALL + n] = own;
    }
    count_done(place, PARTS, lane);
    let last = workgroupUniformLoad(&is_last).x;
    if last == 1u {
        add_up(start, lane);
    }
    return last;
}

// All loads are issued before waiting for any of them.
fn add_up(start: u32, lane: u32) {
    var fours: array<vec4f, FOURS_OF_A_LANE * PARTS>;
    for (var i = 0u; i < FOURS_OF_A_LANE; i++) {
        let n = min(i * WG + lane, FOURS_OF_ALL - 1u);
        for (var p = 0u; p < PARTS; p++) {
            fours[i * PARTS + p] = found[start + p * FOURS_OF_ALL + n];
        }
    }
    for (var i = 0u; i < FOURS_OF_A_LANE; i++) {
        let n = i * WG + lane;
        var sum = vec4f();
        for (var p = 0u; p < PARTS; p++) {
            sum += fours[i * PARTS + p];
        }
        if n < FOURS_OF_ALL {
            for (var c = 0u; c < 4u; c++) {
                y_tile[tile_place(4u * n + c, 0u)] = sum[c];
            }
        }
    }
    workgroupBarrier();
}

fn sums_at(n: u32) -> vec2f {
    let at = tile_place(n, 0u);
    return vec2f(y_tile[at], y_tile[at + PER_OUT - 1u]);
}
