//! The floating-point state is the program's.

use heaptape_tests::{Program, Target, same, torture};

#[test]
fn no_hook_changes_the_floating_point_state() {
    let path = Target::program("float_state.cpp").flag("-D_GNU_SOURCE").build();
    let plain = Program::new(&path).plain().success();
    assert_eq!(plain.text(), "as before\n");
    for options in [&[][..], &["--sample=1KiB"], &["--sample=64KiB", "--stacks=none"]] {
        let program = options.iter().fold(Program::new(&path), |program, option| program.option(option));
        same(&plain, &program.recorded().outcome);
    }
    torture::passed(62, "hooked functions that keep the floating-point state", 44);
}
