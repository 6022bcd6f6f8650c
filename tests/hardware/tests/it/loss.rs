//! A primary at 2-safe and a standby in a virtual machine, over TCP on a wire that is late, loses, repeats and swaps packets.

use crate::run_guest;
use reprise_test_crash::skip;
use reprise_test_hardware::{Processors, is_available};

#[test]
fn nothing_acknowledged_at_2_safe_is_lost_on_a_wire_that_loses_packets() {
    const NAME: &str = "nothing_acknowledged_at_2_safe_is_lost_on_a_wire_that_loses_packets";
    if let Err(why) = is_available() {
        return skip(NAME, &why);
    }
    let _processor = Processors::one();
    run_guest("loss-guest", "900");
}
