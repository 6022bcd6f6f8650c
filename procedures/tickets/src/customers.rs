//! Customers, each with an address that no other one has.

use reprise_procedure::prelude::*;

use crate::tables::{Address, Customer};

/// The answer of `customer`.
#[derive(Clone, Debug, PartialEq, ProcedureStruct)]
pub struct CustomerView {
    pub name: String,
    pub email: String,
    pub spent: Decimal<2>,
}

/// Takes a customer up. The address names a partition of its own, so it is an argument that chooses one.
#[procedure(partition_by(customer, email))]
pub fn register(tx: &Txn, customer: i64, name: &str, email: &str) -> Result<(), Abort> {
    if Customer::exists(tx, customer) {
        abort!("customer_exists", "there is a customer {customer} already");
    }
    take_address(tx, customer, email)?;
    let spent = Decimal::from_whole(0);
    Customer::insert(
        tx,
        &Customer {
            customer,
            name: name.to_owned(),
            email: email.to_owned(),
            spent,
        },
    )?;
    Ok(())
}

/// Changes a customer's address. The old one is an argument, too: its row lies on a partition that only it names.
#[procedure(partition_by(customer, old, new))]
pub fn change_email(tx: &Txn, customer: i64, old: &str, new: &str) -> Result<(), Abort> {
    let Some(mut found) = Customer::get(tx, customer) else {
        abort!("unknown_customer", "there is no customer {customer}");
    };
    if found.email != old {
        abort!("another_email", "{old} is not the address of customer {customer}");
    }
    if old == new {
        return Ok(());
    }
    take_address(tx, customer, new)?;
    Address::delete(tx, old);
    found.email = new.to_owned();
    found.update(tx)?;
    Ok(())
}

fn take_address(tx: &Txn, customer: i64, email: &str) -> Result<(), Abort> {
    if !email.contains('@') {
        abort!("bad_email", "{email:?} is no address");
    }
    if Address::insert(
        tx,
        &Address {
            email: email.to_owned(),
            customer,
        },
    )
    .is_err()
    {
        abort!("email_taken", "{email} is another customer's");
    }
    Ok(())
}

/// A customer.
#[procedure(partition_by(customer), read_only)]
pub fn customer(tx: &Txn, customer: i64) -> Result<CustomerView, Abort> {
    let Some(found) = Customer::get(tx, customer) else {
        abort!("unknown_customer", "there is no customer {customer}");
    };
    let found = found.into_inner();
    Ok(CustomerView {
        name: found.name,
        email: found.email,
        spent: found.spent,
    })
}
