// Of the rows of y that a workgroup has stored, their mean, and the sum of squared differences from it, for a norm to come.
// Both sums are of what is apart from the first row, so that they are found at once and nothing is lost.
// needs sum: group_sum
@group(0) @binding(14) var<storage, read_write> statistics: array<vec2f>;  // one for each block of rows

var<workgroup> stored_values: array<f32, BLOCK>;

fn emit_statistics(row: u32, stores: bool, block: u32, rows: u32, lane: u32) {
    if !IN_LANES {
        if stores {
            stored_values[row] = stored;
        }
        workgroupBarrier();
    }
    if lane < SUBGROUP {
        let count = select(min(BLOCK, rows - block * BLOCK), BLOCK, rows % BLOCK == 0u);
        var first: f32;
        if IN_LANES {
            first = subgroupBroadcastFirst(stored);
        } else {
            first = stored_values[0];
        }
        var sum = 0.0;
        var squares = 0.0;
        for (var turn = 0u; turn < (BLOCK + SUBGROUP - 1u) / SUBGROUP; turn++) {
            let n = turn * SUBGROUP + lane;
            var value = stored;
            if !IN_LANES {
                value = stored_values[min(n, BLOCK - 1u)];
            }
            let apart = select(0.0, value - first, n < count);
            sum += apart;
            squares += apart * apart;
        }
        sum = group_sum(sum, SUBGROUP);
        squares = group_sum(squares, SUBGROUP);
        if lane == 0u {
            let mean = sum / f32(count);
            statistics[block] = vec2f(first + mean, squares - sum * mean);
        }
    }
}
