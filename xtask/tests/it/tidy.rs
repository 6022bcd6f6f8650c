//! The tree keeps its rules.
#[test]
fn the_tree_is_tidy() {
    let complaints = xtask::tidy::complaints(&xtask::root()).unwrap();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
