//! The inputs as arguments: encoded for the engine, as JSON for the server.

use reprise_abi::value::{push_bytes, push_varint};

use super::inputs::{Customer, Input, OrderInput};
use crate::workload::push_i64;

/// Appends the arguments in the order of the procedure's parameters.
pub fn encode(input: &Input, out: &mut Vec<u8>) {
    match input {
        Input::NewOrder(order) => encode_order(order, out),
        Input::Payment(payment) => {
            push_place(out, payment.w_id, payment.d_id);
            push_place(out, payment.c_w_id, payment.c_d_id);
            encode_customer(payment.customer, out);
            out.extend_from_slice(&payment.h_amount.to_le_bytes());
        }
        Input::OrderStatus { w_id, d_id, customer } => {
            push_place(out, *w_id, *d_id);
            encode_customer(*customer, out);
        }
        Input::Delivery { w_id, o_carrier_id } => push_place(out, *w_id, *o_carrier_id),
        Input::StockLevel { w_id, d_id, threshold } => {
            push_place(out, *w_id, *d_id);
            out.extend_from_slice(&threshold.to_le_bytes());
        }
    }
}

fn push_place(out: &mut Vec<u8>, w_id: i16, d_id: i8) {
    out.extend_from_slice(&w_id.to_le_bytes());
    out.push(d_id as u8);
}

fn encode_order(order: &OrderInput, out: &mut Vec<u8>) {
    let count = order.line_count as usize;
    push_place(out, order.w_id, order.d_id);
    out.extend_from_slice(&order.c_id.to_le_bytes());
    push_varint(out, count as u32);
    let i_ids = order.i_ids[..count].iter();
    i_ids.for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
    push_varint(out, count as u32);
    let supply_w_ids = order.supply_w_ids[..count].iter();
    supply_w_ids.for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
    push_varint(out, count as u32);
    out.extend(order.quantities[..count].iter().map(|quantity| *quantity as u8));
}

fn encode_customer(customer: Customer, out: &mut Vec<u8>) {
    match customer {
        Customer::Id(c_id) => {
            out.push(1);
            out.extend_from_slice(&c_id.to_le_bytes());
            out.push(0);
        }
        Customer::LastName(number) => {
            out.extend_from_slice(&[0, 1]);
            push_bytes(out, tpcc::last_name(number as u32).as_bytes());
        }
    }
}

/// Appends the arguments as an object.
pub(super) fn write_json(input: &Input, out: &mut Vec<u8>) {
    match input {
        Input::NewOrder(order) => {
            let count = order.line_count as usize;
            begin(out, order.w_id);
            member(out, "d_id", order.d_id);
            member(out, "c_id", order.c_id);
            list(out, "i_ids", &order.i_ids[..count]);
            list(out, "supply_w_ids", &order.supply_w_ids[..count]);
            list(out, "quantities", &order.quantities[..count]);
        }
        Input::Payment(payment) => {
            begin(out, payment.w_id);
            member(out, "d_id", payment.d_id);
            member(out, "c_w_id", payment.c_w_id);
            member(out, "c_d_id", payment.c_d_id);
            json_customer(payment.customer, out);
            member(out, "h_amount", payment.h_amount);
        }
        Input::OrderStatus { w_id, d_id, customer } => {
            begin(out, *w_id);
            member(out, "d_id", *d_id);
            json_customer(*customer, out);
        }
        Input::Delivery { w_id, o_carrier_id } => {
            begin(out, *w_id);
            member(out, "o_carrier_id", *o_carrier_id);
        }
        Input::StockLevel { w_id, d_id, threshold } => {
            begin(out, *w_id);
            member(out, "d_id", *d_id);
            member(out, "threshold", *threshold);
        }
    }
    out.push(b'}');
}

fn begin(out: &mut Vec<u8>, w_id: i16) {
    out.extend_from_slice(b"{\"w_id\":");
    push_i64(out, w_id as i64);
}

fn name(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

fn member(out: &mut Vec<u8>, text: &str, value: impl Into<i64>) {
    name(out, text);
    push_i64(out, value.into());
}

fn list<T: Copy + Into<i64>>(out: &mut Vec<u8>, text: &str, values: &[T]) {
    name(out, text);
    out.push(b'[');
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        push_i64(out, (*value).into());
    }
    out.push(b']');
}

fn json_customer(customer: Customer, out: &mut Vec<u8>) {
    match customer {
        Customer::Id(c_id) => member(out, "c_id", c_id),
        Customer::LastName(number) => {
            name(out, "c_last");
            out.push(b'"');
            out.extend_from_slice(tpcc::last_name(number as u32).as_bytes());
            out.push(b'"');
        }
    }
}

#[cfg(test)]
mod tests {
    use reprise_abi::value::ValueReader;
    use serde_json::Value;

    use super::*;
    use crate::{
        random::Random,
        tpcc::{PROCEDURES, inputs::Inputs},
    };

    /// Both forms name the parameters of the procedure, in their order and of their types.
    #[test]
    fn arguments_fit_the_procedures() {
        let schema = tpcc::MODULE.schema();
        let inputs = Inputs::new(3, 1, None, 1).expect("no remote share is asked for");
        let mut random = Random::new(1);
        for _ in 0..1_000 {
            let input = inputs.next(&mut random);
            let name = PROCEDURES[input.kind() as usize];
            let procedure = schema.procedures.iter().find(|procedure| procedure.name == name);
            let params = &procedure.expect("the module has it").params;
            let mut encoded = Vec::new();
            encode(&input, &mut encoded);
            let mut reader = ValueReader::new(&encoded);
            params.iter().for_each(|param| reader.skip(&param.ty).expect(name));
            reader.finish().expect(name);
            let mut json = Vec::new();
            write_json(&input, &mut json);
            let json: Value = serde_json::from_slice(&json).expect("JSON");
            for member in json.as_object().expect("an object").keys() {
                assert!(params.iter().any(|param| param.name == *member), "{name} {member}");
            }
            assert_eq!(json["w_id"], i16::from_le_bytes([encoded[0], encoded[1]]));
        }
    }
}
