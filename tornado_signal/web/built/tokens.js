export default core=>{
var e=core[36],n=core[40],a=core[10],c=core[15],s=core[51],i=core[57];var f=6e4;async function p(t,r){try{return await i(a,null,async()=>t())}catch(o){throw!r&&!n(o)?o:s(new c("token-failed","The function `token` failed, or took too long",{cause:o}))}}function l(t){try{let[,r=""]=t.split("."),o=JSON.parse(atob(r.replaceAll("-","+").replaceAll("_","/"))).exp*1e3-Date.now();return o>0?e()+Math.max(o-f,o/2):1/0}catch{return 1/0}}return({ask:p,renewalMs:l});
}
//# sourceMappingURL=tokens.js.map
