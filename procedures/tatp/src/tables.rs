//! The four tables. Hash keys: the benchmark asks by whole keys, and a forwarding begins at one of three hours.

use reprise_procedure::{advanced::*, prelude::*};

/// A subscriber, and what `get_subscriber_data` answers.
#[table(name = "subscriber", primary_key(s_id), hash, partition_by = s_id)]
#[derive(Clone, Debug, PartialEq, ProcedureResult)]
pub struct Subscriber {
    pub s_id: i32,
    pub sub_nbr: SmallText<15>,
    pub bit_1: bool,
    pub bit_2: bool,
    pub bit_3: bool,
    pub bit_4: bool,
    pub bit_5: bool,
    pub bit_6: bool,
    pub bit_7: bool,
    pub bit_8: bool,
    pub bit_9: bool,
    pub bit_10: bool,
    pub hex_1: u8,
    pub hex_2: u8,
    pub hex_3: u8,
    pub hex_4: u8,
    pub hex_5: u8,
    pub hex_6: u8,
    pub hex_7: u8,
    pub hex_8: u8,
    pub hex_9: u8,
    pub hex_10: u8,
    pub byte2_1: u8,
    pub byte2_2: u8,
    pub byte2_3: u8,
    pub byte2_4: u8,
    pub byte2_5: u8,
    pub byte2_6: u8,
    pub byte2_7: u8,
    pub byte2_8: u8,
    pub byte2_9: u8,
    pub byte2_10: u8,
    pub msc_location: u32,
    pub vlr_location: u32,
}

/// Which subscriber has a number. Everywhere, so that a call that has a number alone finds it wherever it runs.
#[table(name = "subscriber_number", primary_key(sub_nbr), hash, replicated)]
#[derive(Clone, Debug, PartialEq)]
pub struct SubscriberNumber {
    pub sub_nbr: SmallText<15>,
    pub s_id: i32,
}

/// How a subscriber gets into the network.
#[table(name = "access_info", primary_key(s_id, ai_type), hash, partition_by = s_id)]
#[derive(Clone, Debug, PartialEq)]
pub struct AccessInfo {
    pub s_id: i32,
    pub ai_type: u8,
    pub data1: u8,
    pub data2: u8,
    pub data3: SmallText<3>,
    pub data4: SmallText<5>,
}

/// A service that a subscriber has.
#[table(name = "special_facility", primary_key(s_id, sf_type), hash, partition_by = s_id)]
#[derive(Clone, Debug, PartialEq)]
pub struct SpecialFacility {
    pub s_id: i32,
    pub sf_type: u8,
    pub is_active: bool,
    pub error_cntrl: u8,
    pub data_a: u8,
    pub data_b: SmallText<5>,
}

/// The number to which a facility's calls go at certain hours.
#[table(name = "call_forwarding", primary_key(s_id, sf_type, start_time), hash, partition_by = s_id)]
#[derive(Clone, Debug, PartialEq)]
pub struct CallForwarding {
    pub s_id: i32,
    pub sf_type: u8,
    pub start_time: u8,
    pub end_time: u8,
    pub numberx: SmallText<15>,
}

#[columns(Subscriber)]
pub(crate) struct Location {
    pub vlr_location: u32,
}

#[columns(Subscriber)]
pub(crate) struct Bit {
    pub bit_1: bool,
}

#[columns(SpecialFacility)]
pub(crate) struct Activity {
    pub is_active: bool,
}

#[columns(SpecialFacility)]
pub(crate) struct DataA {
    pub data_a: u8,
}
