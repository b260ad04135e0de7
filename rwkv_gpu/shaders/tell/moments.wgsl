// Of the rows of y that a workgroup has stored, their mean, and the sum of squared differences from it, for a norm to come.
@group(0) @binding(14) var<storage, read_write> moments: array<vec2f>;  // one for each block of rows

var<workgroup> told: array<f32, BLOCK>;

fn tell(row: u32, stores: bool, block: u32, rows: u32, lane: u32) {
    if stores {
        told[row] = stored;
    }
    workgroupBarrier();
    if lane < SUBGROUP {
        let count = min(BLOCK, rows - block * BLOCK);
        var sum = 0.0;
        for (var n = lane; n < count; n += SUBGROUP) {
            sum += told[n];
        }
        let mean = reach_add(sum, SUBGROUP) / f32(count);
        var squares = 0.0;
        for (var n = lane; n < count; n += SUBGROUP) {
            squares += (told[n] - mean) * (told[n] - mean);
        }
        squares = reach_add(squares, SUBGROUP);
        if lane == 0u {
            moments[block] = vec2f(mean, squares);
        }
    }
}
