const BIASED = false;

fn bias_of(_matrix: u32, _row: u32) -> f32 { return 0.0; }
