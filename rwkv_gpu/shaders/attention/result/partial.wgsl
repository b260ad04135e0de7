// A workgroup has seen one run of the context: the sum as it is, behind it the maximum and the sum of exponentials.
fn write(head: u32, number: u32, column: u32, x: vec4f, top_and_sum: vec2f) {
    let at = (head * RUNS + number) * (N4 + 1u);
    y[at + column] = x;
    if column == 0u {
        y[at + N4] = vec4f(top_and_sum, 0.0, 0.0);
    }
}

fn finish(_first: u32, _lane: u32) {}
