// What is loaded of x is what is multiplied.
alias Loaded = vec4f;

fn look(_lane: u32) {}
fn found(values: Loaded) -> vec4f { return values; }
