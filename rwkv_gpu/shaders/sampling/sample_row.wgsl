// chosen[r] = the token drawn from row r      one workgroup per row
// needs choice: choose
// needs sampling/whole: whole_of
@group(0) @binding(1) var<storage, read> logits: array<f32>;            // [R, V]
@group(0) @binding(2) var<storage, read> draws: array<Draw>;            // [R]

fn run(group: u32, lane: u32) {
    if group < step.rows {
        choose(group, draws[group], whole_of(group, lane), lane);
    }
}
