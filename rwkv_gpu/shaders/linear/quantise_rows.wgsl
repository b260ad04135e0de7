// x as integers, 32 columns to a scale: what gemm_int8 and skinny_gemm multiply      one workgroup per row t of each x
// needs linear/quantising: beside

fn run(group: u32, lane: u32) { beside(group, lane); }
