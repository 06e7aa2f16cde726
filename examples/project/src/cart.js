import { priceOf } from "./price.js";

// total adds up a cart, in cents.
export function total(cart) {
  // TODO: refuse negative quantities
  return cart.reduce((sum, { sku, quantity }) => sum + priceOf(sku) * quantity, 0);
}
