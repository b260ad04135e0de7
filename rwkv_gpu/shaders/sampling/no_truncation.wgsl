// Every token of a row may stay.
// needs sampling/part: Best
fn is_cut(_draw: Draw) -> bool { return false; }

fn best_kept(_row: u32, _draw: Draw, _keys: vec2u, _whole: Whole, _lane: u32) -> Best { return Best(); }
