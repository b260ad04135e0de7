// x as float16 with a power of two for each row: what matrix units multiply      one workgroup per row t of each x
// needs linear/rounding: beside

fn run(group: u32, lane: u32) { beside(group, lane); }
