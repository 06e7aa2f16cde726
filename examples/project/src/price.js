const prices = { apple: 45, pear: 60, melon: 320 };

// priceOf is the price of one piece, in cents.
export function priceOf(sku) {
  // TODO: read prices from the database
  if (!(sku in prices)) throw new Error(`unknown sku ${sku}`);
  return prices[sku];
}

// discounted takes percent off a price, rounding half to even.
export function discounted(price, percent) {
  // TODO: round half to even, as promised
  return Math.round((price * (100 - percent)) / 100);
}
