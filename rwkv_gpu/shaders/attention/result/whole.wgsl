// A workgroup has seen the whole context: what it has is the answer.
// needs answer: answer
// needs gate: gated
// needs sink: sink_of
fn write(head: u32, _run: u32, column: u32, x: vec4f, top_and_sum: vec2f) {
    let i = head * N4 + column;
    answer(i, gated(x / (top_and_sum.y + sink_of(head, top_and_sum.x)), i));
}

fn finish(_first: u32, _lane: u32) {}
