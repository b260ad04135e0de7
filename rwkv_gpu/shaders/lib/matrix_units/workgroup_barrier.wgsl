// Lanes of a subgroup wait for each other, and see what each has written to workgroup memory; so do those of all subgroups.
fn meet() { workgroupBarrier(); }
